"""A function's name and its arguments as JSON between tokens: DeepSeek V3 and V3.1, Kimi K2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from gateway.tool_calls.call_syntax import (
    CallSink,
    Matcher,
    container,
    function_name,
    next_tag,
    nonspace,
    text_before,
)
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import CallForm, CallId, Syntax

FENCE = "```"
_KIMI_ID = re.compile(r"\s*(?:functions\.)?([\w.-]+?)(?::[0-9]+)?\s*")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens around a section and a call."""

    section: tuple[str, str]
    call: tuple[str, str, str]  # before the name, before the arguments, at the end


def kimi_id(call_id: str, name: str, number: int) -> str:
    """The id as these models write it: in a prompt it is all that tells the function's name."""
    return f"functions.{name}:{number}"


def _match(tokens: Tokens, sink: CallSink) -> Matcher[None]:
    begin, separator, end = tokens.call
    tag, _ = yield from next_tag((begin,))
    while tag == begin:
        header = yield from text_before(separator)
        yield from _call(header, sink)
        tag = end
        while tag in (FENCE, end):
            tag, _ = yield from next_tag((FENCE, end, begin, tokens.section[1]))
            if tag != begin and tag:
                sink.commit()
    if not tag:
        raise NotACall  # what follows is text


def _call(header: str, sink: CallSink) -> Matcher[None]:
    """A call after the text before its arguments, up to their end."""
    char = yield from nonspace()
    found = _KIMI_ID.fullmatch(header)
    name = found[1] if found else ""
    if char != "{":  # DeepSeek V3: a type, then the name and fenced JSON
        name, char = yield from function_name(char)
        if not (yield from next_tag((FENCE + "json",), char))[0]:
            raise NotACall
        char = yield from nonspace()
    sink.begin(name)
    if char != "{":
        raise NotACall
    yield from container(char, sink.put)
    sink.end()


def _syntax(
    name: str, tokens: Tokens, before: str, after: str = "", between: str = "", call_id: CallId | None = None
) -> Syntax:
    opening, closing = tokens.section
    begin, _, end = tokens.call
    return Syntax(
        name,
        partial(_match, tokens),
        marks=(opening,),
        bare_marks=(begin,),
        tokens=(*tokens.section, *tokens.call),
        endings=(FENCE + end + closing, end + closing, closing),
        form=CallForm(opening + begin, before, after + end, between + begin, closing),
        call_id=call_id,
    )


_DEEPSEEK = Tokens(
    ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
)
_KIMI = Tokens(
    ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
)
NAMED_JSON = (
    _syntax("deepseek_v3", _DEEPSEEK, "function<｜tool▁sep｜>{name}\n```json\n", "\n```", "\n"),
    _syntax("deepseek_v31", _DEEPSEEK, "{name}<｜tool▁sep｜>"),
    _syntax("kimi_k2", _KIMI, "functions.{name}:{number}<|tool_call_argument_begin|>", call_id=kimi_id),
)
