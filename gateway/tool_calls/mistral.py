"""Mistral: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`; newer: `[TOOL_CALLS]name[ARGS]{…}` per call."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from gateway.tool_calls.call_syntax import CallSink, Matcher, call_object, container, nonspace
from gateway.tool_calls.json_scanner import WHITESPACE, NotACall
from gateway.tool_calls.parser import CallForm, Syntax

MARK = "[TOOL_CALLS]"
ARGS_MARK = "[ARGS]"
ID_MARK = "[CALL_ID]"
MAX_NAME_CHARS = 128
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


def short_id(call_id: str, name: str = "", number: int = 0) -> str:
    """The id in the form that these models' templates require: nine letters and digits."""
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def _match(sink: CallSink) -> Matcher[None]:
    char = yield from nonspace()
    if char == "[":
        yield from _list(sink)
    else:
        yield from _named(char, sink)


def _list(sink: CallSink) -> Matcher[None]:
    char = ","
    while char == ",":
        if (yield from nonspace()) != "{":
            raise NotACall
        char = (yield from call_object(sink)) or (yield from nonspace())
    if char != "]":
        raise NotACall


def _named(char: str, sink: CallSink) -> Matcher[None]:
    name = ""
    while char not in "[{":
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NotACall
        char = yield
    sink.begin(name.rstrip(WHITESPACE))
    while char == "[":
        mark = char
        while not mark.endswith((ARGS_MARK, ID_MARK)):
            if len(mark) > MAX_NAME_CHARS:  # a call id is between the two marks
                raise NotACall
            mark += yield
        if mark.endswith(ARGS_MARK):
            char = yield from nonspace()
            break
    if char != "{":
        raise NotACall
    yield from container(char, sink.put)
    sink.end()


_NAMED = CallForm(MARK, "{name}" + ARGS_MARK, "", MARK)
MISTRAL = Syntax(
    "mistral",
    _match,
    marks=(MARK,),
    tokens=(MARK, ARGS_MARK, ID_MARK),
    endings=("}]", "]"),
    form=CallForm(MARK + "[", '{"name": "{name}", "arguments": ', "}", ", ", "]"),
    call_id=short_id,
)
MISTRAL_NAMED = replace(MISTRAL, form=_NAMED)
