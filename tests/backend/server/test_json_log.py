"""Each line is one JSON object, whatever a record holds."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from datetime import datetime

import pytest

from backend.server.json_log import JsonFormatter

DYING = """
import logging, threading, warnings
from backend.server.json_log import JsonFormatter, configure_root

configure_root("json", logging.Formatter(), JsonFormatter())
logging.getLogger("a.b").info("two\\nlines %d", 5)
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()


class Loose:
    def __del__(self) -> None:
        raise KeyError("loose")


Loose()
raise RuntimeError("over")
"""


def written(message: str, *arguments: object, **more: object) -> dict[str, object]:
    """What the formatter makes of a record of these parts."""
    record = logging.LogRecord("a", logging.WARNING, "", 1, message, arguments, None)
    record.__dict__.update(more)
    line = JsonFormatter(lambda text: text.replace("secret", "***")).format(record)
    assert line.isascii() and "\n" not in line
    found: dict[str, object] = json.loads(line)
    return found


def test_a_process_writes_nothing_else() -> None:
    found = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True)
    first, second, thread, loose, third = map(json.loads, found.stderr.splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("INFO", "a.b", "two\nlines 5")
    assert datetime.fromisoformat(first["time"]).tzinfo is not None
    assert second["logger"] == "py.warnings" and "old" in second["message"]
    assert "ZeroDivisionError" in thread["exception"] and "KeyError: 'loose'" in loose["exception"]
    assert "RuntimeError: over" in third["exception"]
    assert found.returncode == 1


@pytest.mark.parametrize("message", ['"}', "\\", "línea", "\ud800", "\x00\x1b[31m", "", "\u2028"])
def test_any_text_is_kept(message: str) -> None:
    assert written("%s", message)["message"] == message


def test_fields_are_members() -> None:
    found = written("x", fields={"request_id": "r", "cost_usd": 0.5, "failed_models": ("a", "b")})
    assert (found["request_id"], found["cost_usd"], found["failed_models"]) == ("r", 0.5, ["a", "b"])


def test_secrets_are_hidden_in_message_and_traceback() -> None:
    try:
        raise ValueError("secret")
    except ValueError as error:
        found = written("a secret", exc_info=(ValueError, error, error.__traceback__))
    assert found["message"] == "a ***"
    assert "ValueError: ***" in str(found["exception"])
