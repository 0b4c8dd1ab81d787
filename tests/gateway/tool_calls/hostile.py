"""Thirty texts a syntax that are no proper calls, or hardly, made from a proper one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.gateway.tool_calls.writers import Writer

VALUES = {"s": "</parameter> 雨 \"{'a\\", "n": [1, {"b": None}], "ok": True}


def hostile(write: Writer) -> Iterator[str]:
    """The texts."""
    call = write([("add", VALUES)])
    twice = write([("add", VALUES), ("look_up", {})])
    tags = re.findall(r"<[^<>\n]*>|\[[A-Z_]+\]|[{}\[\]()]", call)
    first, last = tags[0], tags[-1]
    yield from (call[: len(call) * part // 8] for part in range(1, 8))  # unterminated
    yield from (call.replace(tag, "", 1) for tag in dict.fromkeys((first, tags[1], tags[-2], last)))
    yield call[::-1]
    yield call.upper()
    yield call.replace("add", "rm")  # not offered
    yield call.replace("add", "add" * 100)
    yield call.replace("add", "")
    yield call.replace("add", "äდ\u0000d")
    yield call.replace("s", "<", 1)
    yield first * 40 + call
    yield call + last * 40
    yield first + call + last
    yield call.replace("雨", call)  # a call inside of a value
    yield call.replace("雨", "雨" * 5_000)
    yield call.replace("雨", "[" * 300)
    yield call.replace("雨", " \n\t\r\u2028\u00a0" * 50)
    yield call.replace("\n", "\r\n")
    yield call.replace('"', "'")
    yield f"I call {call} now {twice}{call} and\n\n{twice[:-3]}"
    yield re.sub(r"\s", "", twice)
    yield twice.replace("true", "maybe").replace("1", "01")
    yield "\u202e" + call + "\ufeff" + twice + "\x00"
    yield write([("add", {"": "", "a" * 400: ""})])
    yield write([("add", {}), ("add", {}), ("rm", {}), ("add", {})])
