"""Calls written as Python, `name(key="value", …)`.

Llama 3.2 and 4: a list, or JSON, which is the answer or behind a mark; LFM2: a list between marks, of JSON
objects where the prompt asks for these; OLMo 3: one call a line between marks.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from functools import partial

from gateway.tool_calls.call_syntax import (
    CallSink,
    Matcher,
    call_object,
    expect,
    function_name,
    next_tag,
    nonspace,
)
from gateway.tool_calls.json_scanner import WHITESPACE, NotACall
from gateway.tool_calls.llama_json import match_objects
from gateway.tool_calls.parser import CallForm, Syntax
from gateway.tool_calls.schema_values import escaped, read_json

MAX_DEPTH = 64
"""Depth of brackets; the limit of Python's own parser is 200."""
MAX_KEY_CHARS = 256
_KEY = re.compile(r"[^\W\d][^()\[\]{}\"'=,*\n]*")
_WORDS = {"true": True, "false": False, "null": None}
"""JSON's, which templates print into these calls."""
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_AFTER_STRING = ",)]}:\"'"
"""What follows the end of a string in a literal: a quote before anything else is a part of it."""
_LINE_BREAKS = {"\n": "\\n", "\r": "\\r"}


def _match_list(closing: str, sink: CallSink) -> Matcher[None]:
    first = yield from nonspace()
    if first == "{" and closing == PYTHON_END:
        yield from match_objects(first, sink)
    if first != "[":
        raise NotACall
    char = ","
    while char == ",":
        char = yield from nonspace()
        if char == "{" and closing != PYTHON_END:
            char = (yield from call_object(sink)) or (yield from nonspace())
        else:
            yield from _call(char, sink)
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
    values: dict[str, str] = {}
    char = yield from nonspace()
    while char != ")":
        key = yield from _key(char)
        value, char = yield from _value()
        if key in values:
            raise NotACall
        values[key] = _as_json(value.strip())
        if char == ",":
            char = yield from nonspace()
    sink.put("{" + ", ".join(f'"{escaped(key)}": {value}' for key, value in values.items()) + "}")
    sink.end()


def _key(char: str) -> Matcher[str]:
    """A keyword up to its equals sign; words that Python reserves are names of parameters, too."""
    key = ""
    while char != "=":
        key += char
        if len(key) > MAX_KEY_CHARS:
            raise NotACall
        char = yield
    key = key.rstrip()
    if not _KEY.fullmatch(key):
        raise NotACall
    return key


def _value() -> Matcher[tuple[str, str]]:
    """The text of a value, and the comma or bracket that ended it."""
    pieces: list[str] = []
    open_brackets: list[str] = []
    char = yield
    while open_brackets or char not in ",)":
        if char in "\"'":
            text, char = yield from _string(char)
            pieces.append(text)
            continue
        if char in _BRACKETS:
            open_brackets.append(_BRACKETS[char])
            if len(open_brackets) > MAX_DEPTH:
                raise NotACall
        elif char in _BRACKETS.values() and (not open_brackets or char != open_brackets.pop()):
            raise NotACall
        pieces.append(char)
        char = yield
    return "".join(pieces), char


def _string(quote: str) -> Matcher[tuple[str, str]]:
    """A string after its first quote, with line breaks escaped; and the character after it."""
    char = yield
    pieces = [quote]
    num_quotes = 1
    if char == quote:
        char = yield
        if char != quote:
            return quote * 2, char
        pieces = [quote * 3]
        num_quotes = 3
        char = yield
    num_closing = 0
    while True:
        num_closing = num_closing + 1 if char == quote else 0
        pieces.append(_LINE_BREAKS.get(char, char) if num_quotes == 1 else char)
        if num_closing == num_quotes:
            char = yield
            space = ""
            while num_quotes == 1 and char in WHITESPACE:
                space += char
                char = yield
            if num_quotes == 3 or char in _AFTER_STRING:
                return "".join(pieces), char
            pieces[-1] = "\\" + quote + "".join(_LINE_BREAKS.get(each, each) for each in space)
            continue  # templates do not escape quotes, so models do not either
        if char == "\\":
            pieces.append((yield))
        char = yield


def _as_json(value: str) -> str:
    """JSON as it is, a literal of Python as JSON. Raises NotACall for anything else."""
    if found := read_json(value)[1]:
        return found
    if not value:
        raise NotACall
    try:
        with warnings.catch_warnings(action="ignore"):  # "\\d" in a string
            tree = _WithWords().visit(ast.parse(f"({value}\n)", mode="eval"))
        literal = ast.literal_eval(tree)
        text = json.dumps(literal, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(literal)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise NotACall from None
    return text


class _WithWords(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_WORDS[node.id]) if node.id in _WORDS else node


def _form(opening: str, between: str, closing: str) -> CallForm:
    return CallForm(opening, "{name}(", ")", between, closing, ("{key}=", ""), separator=", ")


PYTHON_END = "<|python_end|>"
PYTHONIC = Syntax(
    "pythonic",
    partial(_match_list, PYTHON_END),
    marks=("<|python_start|>",),
    leading_chars="[{",
    tokens=("<|python_start|>", PYTHON_END),
    endings=("]<|python_end|>", PYTHON_END),
    form=_form("[", ", ", "]"),
)
LFM2 = Syntax(
    "lfm2",
    partial(_match_list, "<|tool_call_end|>"),
    marks=("<|tool_call_start|>",),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    endings=("}]<|tool_call_end|>", "]<|tool_call_end|>", "<|tool_call_end|>"),
    form=_form("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
)
OLMO3 = Syntax(
    "olmo3",
    partial(_match_lines, "</function_calls>"),
    marks=("<function_calls>",),
    tokens=("<function_calls>", "</function_calls>"),
    endings=("</function_calls>",),
    form=_form("<function_calls>", "\n", "</function_calls>"),
)
