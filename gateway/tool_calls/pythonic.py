"""Llama 3.2 and 4: the answer is a Python list of calls, `[name(key="value", …), …]`."""

from __future__ import annotations

import ast
import json
import warnings

from gateway.tool_calls.call_syntax import CallSink, Matcher, nonspace
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import Syntax

MARK = "<|python_start|>"
MAX_NAME_CHARS = 128
MAX_DEPTH = 64
"""Depth of brackets; the limit of Python's own parser is 200."""
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def _match(sink: CallSink) -> Matcher[None]:
    if (yield from nonspace()) != "[":
        raise NotACall
    char = ","
    while char == ",":
        name = yield from _name()
        sink.begin(name)
        arguments = yield from _arguments()
        sink.put(_as_json(arguments))
        sink.end()
        char = yield from nonspace()
    if char != "]":
        raise NotACall


def _name() -> Matcher[str]:
    """A function's name, up to and including the bracket after it."""
    name = ""
    char = yield from nonspace()
    while char != "(":
        name += char
        if not (char.isalnum() or char in "_.-") or len(name) > MAX_NAME_CHARS:
            raise NotACall
        char = yield
    return name


def _arguments() -> Matcher[str]:
    """The text up to the bracket that closes the call; the bracket is consumed."""
    pieces: list[str] = []
    open_brackets = [")"]
    quote = ""
    is_escaped = False
    while True:
        char = yield
        if quote:
            if char == quote and not is_escaped:
                quote = ""
            is_escaped = char == "\\" and not is_escaped
        elif char in "\"'":
            quote = char
        elif char in _BRACKETS:
            open_brackets.append(_BRACKETS[char])
            if len(open_brackets) > MAX_DEPTH:
                raise NotACall
        elif char in _BRACKETS.values():
            if char != open_brackets.pop():
                raise NotACall
            if not open_brackets:
                return "".join(pieces)
        pieces.append(char)


def _as_json(arguments: str) -> str:
    """`a=1, b=["x"]` as a JSON object. Raises NotACall unless all are keywords with literal values."""
    try:
        with warnings.catch_warnings(action="ignore"):  # "\\d" in a string
            call = ast.parse(f"f({arguments}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise NotACall
        values = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        if None in values or len(values) < len(call.keywords):  # **kwargs, or a repeated keyword
            raise NotACall
        text = json.dumps(values, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(values)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise NotACall from None
    return text


PYTHONIC = Syntax("pythonic", _match, marks=(MARK,), leading_chars="[", tokens=(MARK,), endings=("]",))
