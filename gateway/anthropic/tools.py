"""Anthropic's tools and tool_choice → those of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend.identifiers import KEY, quoted
from gateway.errors import InvalidRequest
from gateway.requests import refusals
from gateway.requests.parse import typed_at


class _Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    input_schema: dict[str, Any]
    type: str | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: Any = None  # accepted
    input_examples: list[Any] | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None  # accepted: arguments stream in any case


class _Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def chat_tools(tools: Sequence[Any], *, drops_hosted: bool = False) -> tuple[list[dict[str, Any]], set[str]]:
    """The functions of `tools`, and the names of what is ignored in them.

    `drops_hosted`: leave out the tools that Anthropic defines. Raises InvalidRequest naming the tool and its
    field.
    """
    found: list[dict[str, Any]] = []
    ignored: set[str] = set()
    for index, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if drops_hosted and isinstance(kind, str) and kind != "custom":
            ignored.add(f"tools.{refusals.shown_name(kind)}")
            continue
        found.append(_function(tool, f"tools[{index}]"))
        if tool.get("defer_loading"):
            ignored.add("tools.defer_loading")
    return found, ignored


def chat_tool_choice(given: dict[str, Any]) -> dict[str, Any]:
    """The chat's fields `tool_choice` and `parallel_tool_calls`. Raises InvalidRequest."""
    choice = typed_at(given, _Choice, "tool_choice")
    names = {"auto": "auto", "any": "required", "none": "none"}
    if choice.type == "tool":
        if choice.name is None:
            raise refusals.missing("tool_choice.name")
        found: dict[str, Any] = {
            "tool_choice": {"type": "function", "function": {"name": choice.name}},
        }
    elif choice.type in names:
        found = {"tool_choice": names[choice.type]}
    else:
        raise refusals.wrong_value("tool_choice.type", "expected auto, any, tool or none", choice.type)
    if choice.disable_parallel_tool_use:
        found["parallel_tool_calls"] = False
    return found


def _function(tool: object, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "custom":
        raise InvalidRequest(
            f"'{where}.type' must be 'custom': {quoted(kind, KEY, 'it')} is a tool that Anthropic defines or "
            "runs, which is not supported here. Describe one of your own with an 'input_schema'; the "
            "policies can say 'requests: {hosted_tools: drop}'.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    found = typed_at(tool, _Tool, where)
    if found.allowed_callers and "direct" not in found.allowed_callers:
        place = f"{where}.allowed_callers"
        raise refusals.unsupported(place, f"'{place}' needs 'direct': programs do not run here")
    function: dict[str, Any] = {"name": found.name, "parameters": found.input_schema}
    if description := _description(found):
        function["description"] = description
    if found.strict is not None:
        function["strict"] = found.strict
    return {"type": "function", "function": function}


def _description(tool: _Tool) -> str:
    """The description; `input_examples`, which a chat has no field for, are appended to it."""
    examples = [f"Example input: {msgspec.json.encode(each).decode()}" for each in tool.input_examples or ()]
    return "\n".join([tool.description, *examples] if tool.description else examples)
