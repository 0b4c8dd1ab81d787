"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one block per call."""

from __future__ import annotations

from gateway.tool_calls.call_syntax import CallSink, Matcher, call_object, expect, nonspace
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import CallForm, Syntax

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"


def _match(sink: CallSink) -> Matcher[None]:
    char = yield from nonspace()
    if char != "{":
        raise NotACall
    while char == "{":  # some models write several calls into one block
        char = (yield from call_object(sink)) or (yield from nonspace())
        while char == "}":  # a surplus brace
            char = yield from nonspace()
    if char != CLOSE_TAG[0]:
        raise NotACall
    yield from expect(CLOSE_TAG[1:])


HERMES = Syntax(
    "hermes",
    _match,
    marks=(OPEN_TAG,),
    tokens=(OPEN_TAG, CLOSE_TAG),
    endings=("}" + CLOSE_TAG, CLOSE_TAG),
    form=CallForm(
        OPEN_TAG + "\n",
        '{"name": "{name}", "arguments": ',
        "}\n" + CLOSE_TAG,
        f"\n{OPEN_TAG}\n",
    ),
)
