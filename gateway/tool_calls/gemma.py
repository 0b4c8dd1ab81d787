"""Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:5}<tool_call|>`, one block per call."""

from __future__ import annotations

from gateway.tool_calls.call_syntax import (
    CallSink,
    Matcher,
    container,
    expect,
    function_name,
    next_tag,
    nonspace,
    string,
    text_before,
)
from gateway.tool_calls.json_scanner import MAX_SCALAR_CHARS, WHITESPACE, NotACall
from gateway.tool_calls.parser import CallForm, Syntax
from gateway.tool_calls.schema_values import ANY, Schema, escaped, parameter_types, typed

OPENING, CLOSING = "<|tool_call>", "<tool_call|>"
QUOTE = '<|"|>'
STRING_STARTS = (QUOTE[0], '"')
"""Models write strings of JSON as well."""
MAX_KEY_CHARS = 256
MAX_DEPTH = 64


def _match(sink: CallSink) -> Matcher[None]:
    if not (yield from next_tag(("call:",)))[0]:
        raise NotACall
    name, char = yield from function_name()
    while char == ":":  # a namespace before the name
        name, char = yield from function_name()
    if char != "{":
        raise NotACall
    yield from _object(sink, sink.begin(name), 0)
    sink.end()
    if not (yield from next_tag((CLOSING,)))[0]:
        raise NotACall


def _object(sink: CallSink, schema: Schema | None, depth: int) -> Matcher[None]:
    """An object after its brace; `schema` is that of the function, for its own arguments only."""
    char = yield from nonspace()
    keys: set[str] = set()
    start = "{"
    while char != "}" or keys:
        key = yield from _key(char)
        if key in keys:
            raise NotACall
        keys.add(key)
        sink.put(f'{start}"{escaped(key)}": ')
        start = ", "
        types = ANY if schema is None else parameter_types(schema, key)
        first = yield from nonspace()
        char = (yield from _value(sink, first, types, depth)) or (yield from nonspace())
        if char == "}":
            break
        if char == ",":
            char = yield from nonspace()
        elif first not in STRING_STARTS:  # models forget commas after strings
            raise NotACall
    sink.put("}" if keys else "{}")


def _key(char: str) -> Matcher[str]:
    """A key, bare or quoted, up to and including its colon."""
    if char == QUOTE[0]:
        yield from expect(QUOTE[1:])
        key = yield from text_before(QUOTE)
    elif char == '"':
        key = yield from string()
    if char in STRING_STARTS:
        if (yield from nonspace()) != ":":
            raise NotACall
        return key
    key = ""
    while char != ":":
        key += char
        if char in "{}[],<\n" or len(key) > MAX_KEY_CHARS:
            raise NotACall
        char = yield
    if not key.strip(WHITESPACE):
        raise NotACall
    return key.strip(WHITESPACE)


def _value(sink: CallSink, char: str, types: frozenset[str], depth: int) -> Matcher[str]:
    """One value that begins with `char`; the character after it, or "" where that is not read yet."""
    if depth > MAX_DEPTH:
        raise NotACall
    if char == QUOTE[0]:
        yield from expect(QUOTE[1:])
        yield from _string(sink)
    elif char == '"':
        yield from container(char, sink.put)
    elif char == "{":
        yield from _object(sink, None, depth + 1)
    elif char == "[":
        yield from _array(sink, depth + 1)
    else:
        word = ""
        while char not in ",}]":
            word += char
            if char in "{[<" or len(word) > MAX_SCALAR_CHARS:
                raise NotACall
            char = yield
        word = word.strip(WHITESPACE)
        if not word:
            raise NotACall
        sink.put("null" if word == "None" and "string" not in types else typed(word, types), 1)
        return char
    return ""


def _array(sink: CallSink, depth: int) -> Matcher[None]:
    sink.put("[")
    char = yield from nonspace()
    while char != "]":
        char = (yield from _value(sink, char, ANY, depth)) or (yield from nonspace())
        if char == ",":
            sink.put(", ")
            if (char := (yield from nonspace())) == "]":
                raise NotACall
        elif char != "]":
            raise NotACall
    sink.put("]")


def _string(sink: CallSink) -> Matcher[None]:
    """A string after its opening quote."""
    held: list[str] = []
    start = '"'
    while "".join(held[-len(QUOTE) :]) != QUOTE:
        held.append((yield))
        if len(held) > 8 * len(QUOTE):
            sink.put(start + escaped("".join(held[: -len(QUOTE)])), len(QUOTE))
            start = ""
            del held[: -len(QUOTE)]
    sink.put(f'{start}{escaped("".join(held)[: -len(QUOTE)])}"')


GEMMA4 = Syntax(
    "gemma4",
    _match,
    marks=(OPENING,),
    tokens=(OPENING, CLOSING, QUOTE),
    endings=("}" + CLOSING, CLOSING),
    form=CallForm(
        OPENING,
        "call:{name}{",
        "}" + CLOSING,
        OPENING,
        parameter=("{key}:", ""),
        separator=",",
        quote=QUOTE,
    ),
)
