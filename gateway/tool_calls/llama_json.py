"""Llama 3: the answer is `{"name": …, "parameters": {…}}`, optionally after a mark; several joined by `;`."""

from __future__ import annotations

from functools import partial

from gateway.tool_calls.call_syntax import CallSink, Matcher, call_object, nonspace
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import CallForm, Syntax

MARK = "<|python_tag|>"


def match_objects(char: str, sink: CallSink) -> Matcher[None]:
    """One call or several, of which `char`, if any, has been read."""
    char = char or (yield from nonspace())
    while char == "{":
        char = (yield from call_object(sink)) or (yield from nonspace())
        if char in ";,":
            char = yield from nonspace()
    raise NotACall  # what follows, if anything, is text


LLAMA_JSON = Syntax(
    "llama3_json",
    partial(match_objects, ""),
    marks=(MARK,),
    leading_chars="{",
    tokens=(MARK,),
    endings=("}", ";", ","),
    has_single_calls=True,
    form=CallForm("", '{"name": "{name}", "parameters": ', "}", "; "),
)
