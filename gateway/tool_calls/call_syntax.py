"""Pieces of call syntax as generators, which are sent one character at a time.

They suspend wherever a text was cut, so that cuts cannot matter; NotACall ends them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.tool_calls.json_scanner import (
    MAX_SCALAR_CHARS,
    SCALAR_CHARS,
    WHITESPACE,
    JsonScanner,
    NotACall,
    check_scalar,
)

T = TypeVar("T")
Reading = Generator[None, str, T]
ARGUMENT_KEYS = ("arguments", "parameters")


class CallSink(Protocol):
    """Takes what a syntax finds: for each call `begin`, `put` any number of times, `end`."""

    def begin(self, name: str) -> None:
        """A call of this function; raises NotACall when there is no such function."""
        ...

    def put(self, arguments: str) -> None:
        """The next piece of its arguments, as JSON."""
        ...

    def end(self) -> None:
        """Its arguments are complete."""
        ...

    def settle(self) -> None:
        """All that was read so far belongs to calls, whatever follows."""
        ...


def nonspace() -> Reading[str]:
    """The next character that is no white space."""
    while (char := (yield)) in WHITESPACE:
        pass
    return char


def expect(wanted: str) -> Reading[None]:
    """Exactly these characters."""
    for char in wanted:
        if (yield) != char:
            raise NotACall


def string() -> Reading[str]:
    """A JSON string behind its opening quote, decoded."""
    pieces = []
    is_escaped = False
    while (char := (yield)) != '"' or is_escaped:
        is_escaped = char == "\\" and not is_escaped
        pieces.append(char)
    try:
        decoded: str = json.loads(f'"{"".join(pieces)}"', strict=False)
    except ValueError:
        raise NotACall from None
    return decoded


def container(first: str, put: Callable[[str], None]) -> Reading[None]:
    """An object, array or string that begins with `first`, handed to `put` as it comes."""
    scanner = JsonScanner()
    put(scanner.feed(first))
    while not scanner.is_complete:
        put(scanner.feed((yield)))


@dataclass(slots=True)
class _Call:
    """What is known of a call so far."""

    sink: CallSink
    name: str = ""
    early: list[str] | None = None  # arguments that came before the name
    is_ended: bool = False

    def end(self) -> None:
        self.sink.end()
        self.is_ended = True


def call_object(sink: CallSink) -> Reading[str]:
    """`{"name": …, "arguments": {…}}` behind its opening brace, keys in any order.

    A call ends with its arguments. Models forget the brace after them: returned is "", or the character
    that stood in its place.
    """
    call = _Call(sink)
    char = ","
    while char == ",":
        char = yield from _member(call)
    if not call.is_ended:
        if char != "}" or not call.name:
            raise NotACall
        sink.put("{}")
        call.end()
    if char != "}":
        return char
    sink.settle()
    return ""


def _member(call: _Call) -> Reading[str]:
    """One key with its value; the character behind them that is no white space."""
    if (yield from nonspace()) != '"':
        raise NotACall
    key = yield from string()
    if (yield from nonspace()) != ":":
        raise NotACall
    first = yield from nonspace()
    if key == "name" and not call.name:
        call.name = yield from _name(first, call.sink)
        if call.early is not None:
            call.sink.put("".join(call.early))
            call.end()
    elif key in ARGUMENT_KEYS and call.early is None and not call.is_ended:
        if call.name:
            yield from _arguments(first, call.sink.put)
            call.end()
        else:
            call.early = []
            yield from _arguments(first, call.early.append)
    else:
        return (yield from _skipped(first))
    return (yield from nonspace())


def _name(first: str, sink: CallSink) -> Reading[str]:
    if first != '"':
        raise NotACall
    name = yield from string()
    sink.begin(name)
    return name


def _arguments(first: str, put: Callable[[str], None]) -> Reading[None]:
    """An object; one inside a string, as OpenAI's API writes it; or null."""
    if first == "{":
        yield from container(first, put)
    elif first == '"':
        put(_object_in((yield from string())))
    elif first == "n":
        yield from expect("ull")
        put("{}")
    else:
        raise NotACall


def _object_in(text: str) -> str:
    """The JSON object that a string held. Raises NotACall: something else, or not Unicode."""
    scanner = JsonScanner()
    pieces: list[str] = []
    for char in text.strip():
        if scanner.is_complete or "\ud800" <= char <= "\udfff":
            raise NotACall
        pieces.append(scanner.feed(char))
    if not scanner.is_complete or pieces[0] != "{":
        raise NotACall
    return "".join(pieces)


def _skipped(first: str) -> Reading[str]:
    """Pass over a value that begins with `first`; the character behind it that is no white space."""
    if first in '{["':
        yield from container(first, lambda _: None)
        return (yield from nonspace())
    scalar = ""
    char = first
    while char in SCALAR_CHARS and len(scalar) < MAX_SCALAR_CHARS:
        scalar += char
        char = yield
    check_scalar(scalar)
    return (yield from nonspace()) if char in WHITESPACE else char
