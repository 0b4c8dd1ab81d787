"""Matchers for the parts of call syntax: generators that are sent one character at a time.

A matcher suspends after every character, so it does not matter how the stream is cut. Its value is what it
matched, without the character after it unless it says so; it raises NotACall where the text does not match.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gateway.tool_calls.json_scanner import (
    MAX_SCALAR_CHARS,
    SCALAR_CHARS,
    WHITESPACE,
    JsonScanner,
    NotACall,
    check_scalar,
)

T = TypeVar("T")
Matcher = Generator[None, str, T]
MAX_NAME_CHARS = 128
MAX_HEADER_CHARS = 256
NAME_KEYS = ("name", "tool_name")
ARGUMENT_KEYS = ("arguments", "parameters")


class CallSink(Protocol):
    """Receives what a syntax matches: for each call `begin`, `put` any number of times, `end`."""

    def begin(self, name: str) -> Mapping[str, Any]:
        """A call of this function; the schema of its parameters. Raises NotACall when it was not offered."""
        ...

    def put(self, arguments: str, num_held: int = 0) -> None:
        """The next piece of the call's arguments, as JSON; `num_held` characters were read beyond it."""
        ...

    def end(self) -> None:
        """The call's arguments are complete."""
        ...

    def commit(self) -> None:
        """Everything matched so far belongs to calls, even if the text after it does not."""
        ...


def overlap(text: str, mark: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `mark`."""
    at = text.find(mark[0], max(len(text) - len(mark) + 1, 0))
    while at >= 0 and not mark.startswith(text[at:]):
        at = text.find(mark[0], at + 1)
    return len(text) - at if at >= 0 else 0


def nonspace() -> Matcher[str]:
    """Skip white space; the character after it."""
    while (char := (yield)) in WHITESPACE:
        pass
    return char


def expect(wanted: str) -> Matcher[None]:
    """Match exactly these characters."""
    for char in wanted:
        if (yield) != char:
            raise NotACall


def next_tag(tags: Collection[str], char: str = "") -> Matcher[tuple[str, str]]:
    """The one of `tags` that comes next after white space, "" if none does; and all that was read for it.

    `char` has been read already. No tag begins with another.
    """
    space: list[str] = []
    while (seen := char or (yield)) in WHITESPACE:
        space.append(seen)
        char = ""
    while seen not in tags:
        if not any(tag.startswith(seen) for tag in tags):
            return "", "".join(space) + seen
        seen += yield
    return seen, "".join(space) + seen


def text_before(mark: str) -> Matcher[str]:
    """The text up to `mark`, which is read as well."""
    text = ""
    while not text.endswith(mark):
        text += yield
        if len(text) > MAX_HEADER_CHARS:
            raise NotACall
    return text.removesuffix(mark)


def function_name(char: str = "") -> Matcher[tuple[str, str]]:
    """A function's name after white space, and the character after it. `char` has been read already."""
    name = ""
    if not char or char in WHITESPACE:
        char = yield from nonspace()
    while char.isalnum() or char in "_.-":
        name += char
        if len(name) > MAX_NAME_CHARS:
            raise NotACall
        char = yield
    return name, char


def string() -> Matcher[str]:
    """A JSON string after its opening quote, decoded."""
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


def container(first: str, put: Callable[[str], None]) -> Matcher[None]:
    """A JSON object, array or string that begins with `first`, passed to `put` character by character."""
    scanner = JsonScanner()
    put(scanner.feed(first))
    while not scanner.is_complete:
        put(scanner.feed((yield)))


@dataclass(slots=True)
class _Call:
    """The state of the call being matched."""

    sink: CallSink
    name: str = ""
    early: list[str] | None = None  # arguments that precede the name
    is_ended: bool = False

    def end(self) -> None:
        self.sink.end()
        self.is_ended = True


def call_object(sink: CallSink) -> Matcher[str]:
    """`{"name": …, "arguments": {…}}` after its opening brace, keys in any order.

    A call ends with its arguments, because models forget the closing brace. The value is "", or the character
    found in place of that brace.
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
    sink.commit()
    return ""


def _member(call: _Call) -> Matcher[str]:
    """One key and its value; the next character after white space."""
    if (yield from nonspace()) != '"':
        raise NotACall
    key = yield from string()
    if (yield from nonspace()) != ":":
        raise NotACall
    first = yield from nonspace()
    if key in NAME_KEYS and not call.name:
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
        return (yield from _skip_value(first))
    return (yield from nonspace())


def _name(first: str, sink: CallSink) -> Matcher[str]:
    if first != '"':
        raise NotACall
    name = yield from string()
    sink.begin(name)
    return name


def _arguments(first: str, put: Callable[[str], None]) -> Matcher[None]:
    """A JSON object; one inside of a string, as in OpenAI's API; or null."""
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
    """The JSON object in a string. Raises NotACall for anything else, and for lone surrogates."""
    scanner = JsonScanner()
    pieces: list[str] = []
    for char in text.strip():
        if scanner.is_complete or "\ud800" <= char <= "\udfff":
            raise NotACall
        pieces.append(scanner.feed(char))
    if not scanner.is_complete or pieces[0] != "{":
        raise NotACall
    return "".join(pieces)


def _skip_value(first: str) -> Matcher[str]:
    """Skip a JSON value that begins with `first`; the next character after white space."""
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
