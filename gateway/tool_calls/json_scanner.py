"""An incremental JSON validator: one character at a time, in constant time each."""

from __future__ import annotations

import json
import re

WHITESPACE = " \t\n\r"
SCALAR_CHARS = frozenset("0123456789+-.eEtrufalsn")
MAX_DEPTH = 128
"""Deeper values overflow the stacks of recursive parsers downstream."""
MAX_SCALAR_CHARS = 4096
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")


class NotACall(Exception):
    """The text does not match the call syntax, so it is plain text."""


class JsonScanner:
    """Validates one object, array or string, until `is_complete`."""

    __slots__ = ("_is_key", "_num_hex", "_open", "_scalar", "_step", "is_complete")

    def __init__(self) -> None:
        self.is_complete = False
        self._open: list[str] = []  # closing brackets still expected, outermost first
        self._scalar = ""
        self._is_key = False
        self._num_hex = 0  # digits of a \u escape still expected
        self._step = self._value

    def feed(self, char: str) -> str:
        """The character as valid JSON. Raises NotACall if it cannot follow.

        Control characters inside of strings, which models write unescaped, are escaped.
        """
        return self._step(char)

    def _value(self, char: str) -> str:
        if char == '"':
            self._is_key = False
            self._step = self._string
        elif char == "{" or char == "[":
            if len(self._open) == MAX_DEPTH:
                raise NotACall
            self._open.append("}" if char == "{" else "]")
            self._step = self._first_key if char == "{" else self._first_item
        elif char in SCALAR_CHARS and self._open:
            self._scalar = char
            self._step = self._in_scalar
        elif char not in WHITESPACE:
            raise NotACall
        return char

    def _first_item(self, char: str) -> str:
        return self._close(char) if char == "]" else self._value(char)

    def _first_key(self, char: str) -> str:
        return self._close(char) if char == "}" else self._key(char)

    def _key(self, char: str) -> str:
        if char == '"':
            self._is_key = True
            self._step = self._string
        elif char not in WHITESPACE:
            raise NotACall
        return char

    def _colon(self, char: str) -> str:
        if char == ":":
            self._step = self._value
        elif char not in WHITESPACE:
            raise NotACall
        return char

    def _separator(self, char: str) -> str:
        if char == ",":
            self._step = self._key if self._open[-1] == "}" else self._value
        elif char not in WHITESPACE:
            return self._close(char)
        return char

    def _close(self, char: str) -> str:
        if char != self._open[-1]:
            raise NotACall
        self._open.pop()
        self._end_value()
        return char

    def _end_value(self) -> None:
        self.is_complete = not self._open
        self._step = self._separator

    def _string(self, char: str) -> str:
        if char == '"':
            if self._is_key:
                self._step = self._colon
            else:
                self._end_value()
        elif char == "\\":
            self._step = self._escape
        elif char < " ":
            return json.dumps(char)[1:-1]
        return char

    def _escape(self, char: str) -> str:
        if char == "u":
            self._num_hex = 4
            self._step = self._hex
        elif char in '"\\/bfnrt':
            self._step = self._string
        else:
            raise NotACall
        return char

    def _hex(self, char: str) -> str:
        if char not in _HEX:
            raise NotACall
        self._num_hex -= 1
        if not self._num_hex:
            self._step = self._string
        return char

    def _in_scalar(self, char: str) -> str:
        if char in SCALAR_CHARS:
            self._scalar += char
            if len(self._scalar) > MAX_SCALAR_CHARS:
                raise NotACall
            return char
        check_scalar(self._scalar)
        self._end_value()
        return self._separator(char)


def check_scalar(text: str) -> None:
    """Raise NotACall unless `text` is a number, true, false or null."""
    if not _SCALAR.fullmatch(text):
        raise NotACall
