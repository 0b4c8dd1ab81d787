"""Log lines as JSON objects, for programs that collect them: the same in every process."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOG_FORMATS = ("text", "json")


class JsonFormatter(logging.Formatter):
    """One object a record: `time`, `level`, `logger`, `message`, and `exception` with its traceback.

    A record's `fields`, a dict given as `extra`, become members beside these: names and numbers only.
    """

    def __init__(self, shown: Callable[[str], str] = str) -> None:
        """`shown` gives each text as it may be shown, without secrets."""
        super().__init__()
        self._shown = shown

    def format(self, record: logging.LogRecord) -> str:
        """One record, as one line of ASCII."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": self._shown(record.getMessage()),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self._shown(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def configure_root(log_format: str, text: logging.Formatter, lines: logging.Formatter) -> None:
    """Log to stderr with `lines` where `log_format` is `json`, else with `text`."""
    logging.basicConfig(level=logging.INFO)
    is_json = log_format == "json"
    for handler in logging.getLogger().handlers:
        handler.setFormatter(lines if is_json else text)
    if is_json:
        logging.captureWarnings(True)
        sys.excepthook = lambda *info: logging.getLogger().critical("the process ends", exc_info=info)
        # Python prints these two itself: of a thread's end, and of what a destructor raised.
        threading.excepthook = lambda args: _log_loose("a thread ends", args)
        sys.unraisablehook = lambda args: _log_loose("an error that reached no caller", args)


def writes_json() -> bool:
    """True where this process logs JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def _log_loose(message: str, args: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    info = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    logging.getLogger().error(message, exc_info=info)
