"""Tools of the type `custom`, whose input is free text: to models they are functions with one text.

A grammar of the input is told in the description, and enforced where our engine can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from backend.identifiers import FUNCTION_NAME
from gateway.requests import refusals
from gateway.requests.parse import typed_at

INPUT = "input"
"""The one argument of the function."""
SYNTAXES = ("lark", "regex")
MAX_GRAMMAR_CHARS = 64 * 1024
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAX_OPENING_CHARS = 256
_SPECIAL = re.compile(r'["\\]')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_UNICODE = re.compile(r"u[0-9a-fA-F]{4}")


class _Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    syntax: str
    definition: Annotated[str, Meta(min_length=1, max_length=MAX_GRAMMAR_CHARS)]


class _Format(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    grammar: _Grammar | None = None


class _Custom(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(pattern=rf"^{FUNCTION_NAME.pattern}\Z")]
    description: str | None = None
    format: _Format | None = None


class _Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    custom: _Custom


class InputGrammar(msgspec.Struct, frozen=True):
    """What the input of a custom tool must match."""

    syntax: str  # lark or regex
    definition: str


class CustomTool(msgspec.Struct, frozen=True):
    """One tool of a chat."""

    name: str
    description: str
    grammar: InputGrammar | None = None

    @property
    def function(self) -> dict[str, Any]:
        """The function that stands for it."""
        text = {"type": "string", "description": "The whole input of the tool, as plain text."}
        parameters = {
            "type": "object",
            "properties": {INPUT: text},
            "required": [INPUT],
            "additionalProperties": False,
        }
        description = self.description
        if self.grammar is not None:
            kind = "Lark grammar" if self.grammar.syntax == "lark" else "regular expression"
            description += f"\n\nThe input must match this {kind}:\n{self.grammar.definition}"
        return {"name": self.name, "description": description.strip(), "parameters": parameters}


def read_custom(tool: object, where: str) -> CustomTool:
    """A tool of the type `custom`. Raises InvalidRequest naming its field."""
    custom: _Custom = typed_at(tool, _Tool, where).custom
    grammar = None
    if custom.format is not None and custom.format.type == "grammar":
        place = f"{where}.custom.format.grammar"
        if custom.format.grammar is None:
            raise refusals.missing(place)
        syntax = custom.format.grammar.syntax
        if syntax not in SYNTAXES:
            raise refusals.wrong_value(f"{place}.syntax", f"expected one of {', '.join(SYNTAXES)}", syntax)
        grammar = InputGrammar(syntax, custom.format.grammar.definition)
    elif custom.format is not None and custom.format.type != "text":
        place = f"{where}.custom.format.type"
        raise refusals.wrong_value(place, "expected 'text' or 'grammar'", custom.format.type)
    return CustomTool(custom.name, custom.description or "", grammar)


def custom_names(tools: Iterable[Any] | None) -> frozenset[str]:
    """The names of the custom tools among those of a chat."""
    found = (tool["custom"].get("name") for tool in tools or () if _is_custom(tool))
    return frozenset(name for name in found if isinstance(name, str))


def as_functions(tools: Sequence[Any], choice: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """`tools` and `tool_choice` of a chat with functions alone. Raises InvalidRequest."""
    found: dict[str, Any] = {
        "tools": [
            {"type": "function", "function": read_custom(tool, f"tools[{index}]").function}
            if _is_custom(tool)
            else tool
            for index, tool in enumerate(tools)
        ]
    }
    if choice is not None:
        found["tool_choice"] = choice_of_functions(choice)
    return found


def choice_of_functions(choice: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A `tool_choice` in which custom tools are named as functions."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "custom" and "custom" in choice:
        return {"type": "function", "function": choice["custom"]}
    allowed = choice.get("allowed_tools")
    if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list):
        return {
            **choice,
            "allowed_tools": {**allowed, "tools": [*map(choice_of_functions, allowed["tools"])]},
        }
    return choice


def as_custom(messages: Sequence[dict[str, Any]], names: frozenset[str]) -> list[dict[str, Any]]:
    """Messages whose calls of custom tools are written as such, for an upstream that has them."""
    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [_custom_call(call, names) for call in calls]}
        found.append(message)
    return found


def _custom_call(call: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    function = call.get("function") or {}
    if function.get("name") not in names:
        return call
    reader = CustomInput()
    text = reader.push(function["arguments"]) + reader.finish()
    return {"id": call["id"], "type": "custom", "custom": {"name": function["name"], "input": text}}


def arguments_of(text: str) -> str:
    """The arguments of the function for this input."""
    return msgspec.json.encode({INPUT: text}).decode()


class CustomInput:
    """The input, from the pieces of the function's arguments, however they are cut.

    A model that writes other arguments meant them as the input, or one text in them.
    """

    __slots__ = ("_is_inside", "_is_other", "_is_over", "_raw", "_rest")

    def __init__(self) -> None:
        self._raw: list[str] = []  # all of it, until the input begins
        self._rest = ""  # not decoded yet: the beginning of an escape
        self._is_inside = False
        self._is_other = False  # no input begins where it should
        self._is_over = False

    def push(self, piece: str) -> str:
        """The text that a piece adds."""
        if not self._is_inside:
            self._raw.append(piece)
            if self._is_other:
                return ""
            head = "".join(self._raw)
            begun = _OPENING.match(head)
            if begun is None:
                self._raw = [head]
                self._is_other = len(head) > _MAX_OPENING_CHARS
                return ""
            self._is_inside, piece = True, head[begun.end() :]
        return "" if self._is_over else self._decoded(self._rest + piece)

    def finish(self) -> str:
        """The text that was held back to the end."""
        if self._is_inside:
            rest, self._rest = ("" if self._is_over else self._rest), ""
            return "" if rest.startswith("\\u") else rest
        raw = "".join(self._raw)
        self._raw.clear()
        try:
            found = msgspec.json.decode(raw)
        except (ValueError, RecursionError):
            return raw
        if isinstance(found, str):
            return found
        if not isinstance(found, dict):
            return raw
        texts = [value for value in found.values() if isinstance(value, str)]
        if isinstance(found.get(INPUT), str):
            texts = [found[INPUT]]
        return texts[0] if len(texts) == 1 else "" if not found else raw

    def _decoded(self, text: str) -> str:
        """What can be decoded of a text inside the string; the rest is kept."""
        pieces = []
        at = 0
        while (found := _SPECIAL.search(text, at)) is not None:
            pieces.append(text[at : found.start()])
            at = found.start()
            if text[at] == '"':
                self._is_over = True
                return "".join(pieces)
            decoded, length = _escape(text, at)
            if not length:
                self._rest = text[at:]
                return "".join(pieces)
            pieces.append(decoded)
            at += length
        self._rest = ""
        return "".join([*pieces, text[at:]])


def _escape(text: str, at: int) -> tuple[str, int]:
    """The escape at a backslash, decoded, and its length; 0 when it is not complete."""
    kind = text[at + 1 : at + 2]
    if kind in _ESCAPES:
        return _ESCAPES[kind], 2
    if kind != "u":
        return (kind if kind in ('"', "\\", "/") else "\\" + kind), 2 if kind else 0
    if len(text) < at + 6:
        return "", 0 if all(c in "0123456789abcdefABCDEF" for c in text[at + 2 :]) else 2
    if not _UNICODE.match(text, at + 1):
        return "\\u", 2
    first = int(text[at + 2 : at + 6], 16)
    if not 0xD800 <= first < 0xDC00:
        return ("\ufffd" if 0xDC00 <= first < 0xE000 else chr(first)), 6
    if len(text) < at + 12 and re.fullmatch(r"(\\(u[0-9a-fA-F]*)?)?", text[at + 6 :]):
        return "", 0
    if text[at + 6 : at + 7] != "\\" or not _UNICODE.match(text, at + 7):
        return "\ufffd", 6
    second = int(text[at + 8 : at + 12], 16)
    if not 0xDC00 <= second < 0xE000:
        return "\ufffd", 6
    return chr(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)), 12


def _is_custom(tool: object) -> bool:
    return isinstance(tool, Mapping) and tool.get("type") == "custom" and isinstance(tool.get("custom"), dict)
