"""`penstock top`: tables that fit, names that a terminal does not obey, and gateways that come and go."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gateway.cli import watch_live
from gateway.cli.connection import Connection, NoAnswer
from gateway.cli.watch_live import ENTER, LEAVE, render, watch
from gateway.console.pages import STATIC
from gateway.settings import SettingsError

SNAPSHOT: dict[str, Any] = {
    "at_s": 1_795_600_000.0,
    "release": "0.1.0",
    "policy": "0123456789abcdef",
    "engines": [
        {
            "name": "pico\x1b[31m\u202e",
            "replica": "0",
            "phase": "ready",
            "running": 3,
            "max_running": 8,
            "waiting": 2,
            "queue_s": 0.25,
            "pages_used": 24,
            "pages_total": 64,
            "prefix_hit_share": 0.75,
            "tokens_per_step": 8.0,
            "input_tokens_per_s": None,
            "output_tokens_per_s": 12.5,
            "drafters": [{"name": "ngram", "proposed": 10, "accepted": 7}],
        }
    ],
    "targets": [
        {
            "model": "theirs",
            "place": "http://x/v1",
            "state": "failing",
            "running": 0,
            "error_share": 1.0,
            "latency_s": None,
            "cooldown_s": 4.5,
        }
    ],
    "workers": [
        {"number": 0, "pid": 12, "in_flight": 1, "cache_entries": 5, "policy": "012345", "uptime_s": 7200.0},
        {"number": 1, "pid": 13, "in_flight": 0, "cache_entries": None, "policy": None, "uptime_s": None},
    ],
}
EMPTY = {**SNAPSHOT, "engines": [], "targets": [], "workers": []}


class Gateway:
    """What connections find, one after the other: snapshots, then an error; at last Ctrl-C."""

    def __init__(self, *connections: tuple[int, Exception]) -> None:
        self._connections = iter(connections)

    def __call__(self) -> Connection:
        return self  # type: ignore[return-value]

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        assert path == "/admin/live"
        count, error = next(self._connections, (0, KeyboardInterrupt()))
        for number in range(count):
            yield {**SNAPSHOT, "number": number}
        raise error


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_live, "RETRY_S", 0.0)


def lines(width: int = 200) -> Sequence[str]:
    return render(SNAPSHOT, width)


def test_a_snapshot_as_tables() -> None:
    shown = [line.split() for line in lines() if line]
    assert shown[0][:2] == ["penstock", "0.1.0"]
    counts = ["3", "of", "8", "2", "250ms", "24", "of", "64", "75%"]
    assert shown[2][-13:] == [*counts, "12.5/s", "-", "8.0", "70%"]
    assert shown[4] == ["theirs", "http://x/v1", "failing", "0", "100%", "-", "4.5s"]
    assert shown[6] == ["0", "12", "1", "2.0h", "012345", "5"]
    assert shown[7] == ["1", "13", "0", "ended", "does", "not", "answer", "-"]
    assert render(EMPTY, 200)[2:] == ["  ".join(watch_live._ENGINES)]


def test_columns_have_the_names_that_the_console_gives_them() -> None:
    page = (STATIC / "live.js").read_text()
    for name in (*watch_live._ENGINES[1:], *watch_live._TARGETS, *watch_live._WORKERS):
        assert f'"{name}"' in page, name


def test_a_terminal_obeys_no_name() -> None:
    text = "".join(lines())
    assert "pico?[31m?" in text and text.isprintable()


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20, 1])
def test_narrow_terminals_lose_columns_from_the_right(width: int) -> None:
    tables = [line for line in lines(width)[1:] if line]
    assert any(line.startswith("Engine") for line in tables)
    for line in watch_live._fitted(tables, width):
        assert len(line) < max(2, width)


def test_once_is_the_second_snapshot_as_its_speeds_are_known() -> None:
    out = io.StringIO()
    assert watch(Gateway((3, NoAnswer("x"))), out, is_once=True, is_json=True) == 0
    assert [json.loads(line)["number"] for line in out.getvalue().splitlines()] == [1]
    out = io.StringIO()
    assert watch(Gateway((3, NoAnswer("x"))), out, is_once=True, is_json=False) == 0
    assert "\x1b" not in out.getvalue() and out.getvalue().startswith("penstock")


def test_lines_of_json_until_ctrl_c() -> None:
    out = io.StringIO()
    assert watch(Gateway((2, KeyboardInterrupt())), out, is_once=False, is_json=True) == 0
    assert len(out.getvalue().splitlines()) == 2 and "\x1b" not in out.getvalue()


def test_it_connects_again_and_leaves_the_terminal_as_it_was() -> None:
    out = io.StringIO()
    gateway = Gateway((1, NoAnswer("it is away.")), (0, NoAnswer("it is away.")), (1, KeyboardInterrupt()))
    assert watch(gateway, out, is_once=False, is_json=False) == 0
    text = out.getvalue()
    assert text.startswith(ENTER) and text.endswith(LEAVE) and text.count(ENTER) == 1
    assert text.count("it is away. Trying again.") == 2 and text.count("penstock 0.1.0") == 2


@pytest.mark.parametrize("error", [NoAnswer("is the gateway up?"), SettingsError("not in admin.principals")])
def test_without_a_first_answer_it_says_why_and_ends(error: SettingsError) -> None:
    for is_once, is_json in ((True, False), (False, True), (False, False)):
        with pytest.raises(SettingsError, match=str(error).replace("?", ".")):
            watch(Gateway((0, error)), io.StringIO(), is_once=is_once, is_json=is_json)


def test_a_caller_that_is_refused_later_is_told() -> None:
    out = io.StringIO()
    with pytest.raises(SettingsError, match="not any more"):
        watch(Gateway((1, SettingsError("not any more"))), out, is_once=False, is_json=False)
    assert out.getvalue().endswith(LEAVE)
