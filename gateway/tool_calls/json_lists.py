"""JSON objects, alone or in a list, behind a mark: Cohere, Granite 3, Nemotron 2, Hunyuan, Apertus …"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gateway.tool_calls.call_syntax import (
    CallSink,
    Matcher,
    call_object,
    container,
    next_tag,
    nonspace,
    string,
)
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import CallForm, Syntax

Item = Callable[[CallSink], Matcher[str]]


def _match(item: Item, closings: tuple[str, ...], sink: CallSink) -> Matcher[None]:
    first = yield from nonspace()
    char = (yield from nonspace()) if first == "[" else first
    if char != "{":
        raise NotACall
    while char == "{":
        char = (yield from item(sink)) or (yield from nonspace())
        if char == "," and first == "[":
            char = yield from nonspace()
        elif first == "{":
            break
    if first == "[":
        if char != "]":
            raise NotACall
        sink.commit()
        char = ""
    tags = tuple(filter(None, closings))
    if tags and not (yield from next_tag(tags, char))[0]:
        raise NotACall


def _keyed_object(sink: CallSink) -> Matcher[str]:
    """`{"function": {…}}` after its opening brace; its value is that of `call_object`."""
    if (yield from nonspace()) != '"':
        raise NotACall
    sink.begin((yield from string()))
    if (yield from nonspace()) != ":":
        raise NotACall
    if (char := (yield from nonspace())) != "{":
        raise NotACall
    yield from container(char, sink.put)
    sink.end()
    if (char := (yield from nonspace())) != "}":
        return char
    sink.commit()
    return ""


def _syntax(name: str, form: CallForm, item: Item = call_object, marks: tuple[str, ...] = ()) -> Syntax:
    """`marks` are others that the family's older models write, and close with their own tags."""
    mark, closing = form.opening.rstrip("[\n "), form.closing.lstrip("]\n ")
    return Syntax(
        name,
        partial(_match, item, (closing, *(each.replace("<", "</") for each in marks))),
        marks=(mark, *marks),
        tokens=(mark, closing),
        endings=("}]" + closing, "]" + closing, "}" + closing, closing),
        form=form,
    )


_CALL = '{"name": "{name}", "arguments": '
_ACTION = '{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": '
JSON_LISTS = (
    _syntax("cohere", CallForm("<|START_ACTION|>[\n    ", _ACTION, "}", ",\n    ", "\n]<|END_ACTION|>")),
    _syntax("granite", CallForm("<|tool_call|>[", _CALL, "}", ", ", "]"), marks=("<tool_call>",)),
    _syntax("phi4_mini_json", CallForm("<|tool_call|>[", _CALL, "}", ", ", "]<|/tool_call|>")),
    _syntax("nemotron_json", CallForm("<TOOLCALL>[", _CALL, "}", ", ", "]</TOOLCALL>")),
    _syntax("hunyuan_a13b", CallForm("<tool_calls>[", _CALL, "}", ", ", "]</tool_calls>")),
    _syntax(
        "apertus",
        CallForm("<|tools_prefix|>[", '{"{name}": ', "}", ", ", "]<|tools_suffix|>"),
        _keyed_object,
    ),
)
