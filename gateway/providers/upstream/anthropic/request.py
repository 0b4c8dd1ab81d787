"""The body of a chat → that of Anthropic's POST /v1/messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.providers.upstream.anthropic.messages import may_think, messages_and_system
from gateway.providers.upstream.fields import field_rules
from gateway.requests import refusals
from gateway.requests.field_support import check_supported
from gateway.requests.structured_output import read_format
from gateway.requests.tools import read_tools
from gateway.requests.types import ChatRequest

EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
"""`reasoning_effort` → Anthropic's `output_config.effort`."""
FIELDS = field_rules(
    "Anthropic's API", ("top_k", "parallel_tool_calls", "continue_final_message", "add_generation_prompt")
)
"""What Anthropic's API does with each field of a chat."""


def messages_body(
    request: ChatRequest, body: Mapping[str, Any], model: str, default_max_tokens: int
) -> tuple[dict[str, Any], list[str]]:
    """The body for Anthropic's API, with the model's name there, and the names of ignored fields.

    Raises InvalidRequest for what the API cannot do, naming the field.
    """
    ignored = check_supported(body, FIELDS, request.model)
    messages, system = messages_and_system(request.messages)
    found: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": request.token_limit or default_max_tokens,
    }
    if system:
        found["system"] = system
    if request.stops:
        found["stop_sequences"] = request.stops
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(request, name)
        if value is not None:
            found[name] = value
    if request.stream:
        found["stream"] = True
    user = request.safety_identifier or request.user
    if user:
        found["metadata"] = {"user_id": user}
    found |= _tools(request)
    config = _thinking(request, found)
    config |= _output_format(request)
    if config:
        found["output_config"] = config
    return found, ignored


def _thinking(request: ChatRequest, found: dict[str, Any]) -> dict[str, Any]:
    """Add `thinking` to the body; return the output config with the effort."""
    effort = request.reasoning_effort
    if effort is None:
        return {}
    if effort == "none":
        found["thinking"] = {"type": "disabled"}
        return {}
    if effort not in EFFORTS:
        expected = f"expected none or one of {', '.join(EFFORTS)}"
        raise refusals.wrong_value("reasoning_effort", expected, effort)
    if may_think(request.messages):
        found["thinking"] = {"type": "adaptive"}
    return {"effort": EFFORTS[effort]}


def _output_format(request: ChatRequest) -> dict[str, Any]:
    schema = read_format(request)
    if schema is None:
        return {}
    if schema == {}:
        raise refusals.unsupported(
            "response_format", "Anthropic's API has no 'json_object': send 'json_schema' with a schema"
        )
    return {"format": {"type": "json_schema", "schema": schema}}


def _tools(request: ChatRequest) -> dict[str, Any]:
    """`tools` and `tool_choice`, also of tools that may not be called: calls before refer to them.

    Raises InvalidRequest.
    """
    is_none = request.tool_choice == "none"
    choice = read_tools(msgspec.structs.replace(request, tool_choice=None) if is_none else request)
    if choice is None:
        return {}
    tools = []
    for definition in choice.definitions:
        function = definition["function"]
        tool = {"name": function["name"], "input_schema": _schema(function["parameters"])}
        if "description" in function:
            tool["description"] = function["description"]
        if function["name"] in choice.strict:
            tool["strict"] = True
        tools.append(tool)
    if is_none:
        return {"tools": tools, "tool_choice": {"type": "none"}}
    how: dict[str, Any] = {"type": "any" if choice.is_required else "auto"}
    if choice.is_required and len(tools) == 1:
        how = {"type": "tool", "name": tools[0]["name"]}
    if choice.max_calls == 1:
        how["disable_parallel_tool_use"] = True
    return {"tools": tools} if how == {"type": "auto"} else {"tools": tools, "tool_choice": how}


def _schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """An input schema: Anthropic's API wants the type, which OpenAI's takes for granted."""
    return {"type": "object", **parameters}
