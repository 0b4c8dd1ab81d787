"""Tools and tool_choice of a response → those of a chat. Hosted tools are refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend.identifiers import KEY, quoted
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.parse import typed_at

CHOICES = ("none", "auto", "required")


class _Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    output_schema: dict[str, Any] | None = None  # accepted: it does not change the call


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[Any] | None = None


def chat_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The functions of `tools`. Raises InvalidRequest naming the tool and its field."""
    return [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]


def chat_tool_choice(given: str | dict[str, Any]) -> str | dict[str, Any]:
    """The `tool_choice` of a chat. Raises InvalidRequest."""
    if isinstance(given, str):
        if given not in CHOICES:
            expected = f"expected one of {', '.join(CHOICES)}, or an object"
            raise refusals.wrong_value("tool_choice", expected, given)
        return given
    choice = typed_at(given, _Choice, "tool_choice")
    if choice.type == "allowed_tools":
        tools = [
            _named(typed_at(tool, _Choice, f"tool_choice.tools[{index}]"), f"tool_choice.tools[{index}]")
            for index, tool in enumerate(choice.tools or ())
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode or "auto", "tools": tools}}
    return _named(choice, "tool_choice")


def _named(choice: _Choice, where: str) -> dict[str, Any]:
    _check_kind(choice.type, where)
    if choice.name is None:
        raise refusals.missing(f"{where}.name")
    return {"type": "function", "function": {"name": choice.name}}


def _function(tool: object, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str):
        _check_kind(kind, where)
    found = typed_at(tool, _Function, where)
    if found.defer_loading:
        place = f"{where}.defer_loading"
        raise refusals.unsupported(place, f"'{place}' is not supported: every tool is offered at once")
    if found.allowed_callers not in (None, [], ["direct"]):
        place = f"{where}.allowed_callers"
        raise refusals.unsupported(place, f"'{place}' may be 'direct' only: programs do not run here")
    names = ("name", "description", "parameters", "strict")
    function = {name: value for name in names if (value := getattr(found, name)) is not None}
    return {"type": "function", "function": function}


def _check_kind(kind: str, where: str) -> None:
    if kind != "function":
        raise InvalidRequest(
            f"'{where}.type' must be 'function': {quoted(kind, KEY, 'it')} is a tool that OpenAI hosts or "
            "defines, which is not supported here.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
