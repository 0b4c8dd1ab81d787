"""Llama 3: the answer is `{"name": …, "parameters": {…}}`, perhaps behind a mark, or several beside `;`."""

from __future__ import annotations

from gateway.tool_calls.call_syntax import CallSink, Reading, call_object, nonspace
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import Syntax

MARK = "<|python_tag|>"


def _read(sink: CallSink) -> Reading[None]:
    char = yield from nonspace()
    while char == "{":
        char = (yield from call_object(sink)) or (yield from nonspace())
        if char in ";,":
            char = yield from nonspace()
    raise NotACall  # the rest, if it comes, is text


LLAMA_JSON = Syntax("llama3_json", _read, marks=(MARK,), starts="{", tokens=(MARK,), endings=("}", ";", ","))
