"""Calls written as Python, `name(key="value", …)`.

Llama 3.2 and 4: a list, which is the answer or behind a mark; LFM2: a list between marks; OLMo 3: one call a
line between marks.
"""

from __future__ import annotations

import ast
import json
import warnings
from functools import partial

from gateway.tool_calls.call_syntax import CallSink, Matcher, expect, function_name, next_tag, nonspace
from gateway.tool_calls.json_scanner import NotACall
from gateway.tool_calls.parser import Syntax

MAX_DEPTH = 64
"""Depth of brackets; the limit of Python's own parser is 200."""
_WORDS = {"true": True, "false": False, "null": None}
"""JSON's, which templates print into these calls."""
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


def _match_list(closing: str, sink: CallSink) -> Matcher[None]:
    if (yield from nonspace()) != "[":
        raise NotACall
    char = ","
    while char == ",":
        yield from _call("", sink)
        char = yield from nonspace()
    if char != "]":
        raise NotACall
    sink.commit()
    if not (yield from next_tag((closing,)))[0]:
        raise NotACall  # what follows is text


def _match_lines(closing: str, sink: CallSink) -> Matcher[None]:
    char = ""
    while char != closing[0]:
        yield from _call(char, sink)
        char = yield from nonspace()
    yield from expect(closing[1:])


def _call(char: str, sink: CallSink) -> Matcher[None]:
    """A call of which `char`, if any, has been read."""
    name, char = yield from function_name(char)
    if char != "(":
        raise NotACall
    sink.begin(name)
    arguments = yield from _arguments()
    sink.put(_as_json(arguments))
    sink.end()


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
        call = _WithWords().visit(call)
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


class _WithWords(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node


PYTHONIC = Syntax(
    "pythonic",
    partial(_match_list, "<|python_end|>"),
    marks=("<|python_start|>",),
    leading_chars="[",
    tokens=("<|python_start|>", "<|python_end|>"),
    endings=("]<|python_end|>", "<|python_end|>"),
)
LFM2 = Syntax(
    "lfm2",
    partial(_match_list, "<|tool_call_end|>"),
    marks=("<|tool_call_start|>",),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    endings=("]<|tool_call_end|>", "<|tool_call_end|>"),
)
OLMO3 = Syntax(
    "olmo3",
    partial(_match_lines, "</function_calls>"),
    marks=("<function_calls>",),
    tokens=("<function_calls>", "</function_calls>"),
    endings=("</function_calls>",),
)
