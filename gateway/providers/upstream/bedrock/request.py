"""The body of a chat → that of Bedrock's Converse and ConverseStream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.providers.upstream.anthropic.request import EFFORTS as CLAUDE_EFFORTS
from gateway.providers.upstream.bedrock.messages import called_functions, messages_and_system
from gateway.providers.upstream.fields import field_rules
from gateway.requests import refusals
from gateway.requests.field_support import check_supported
from gateway.requests.structured_output import read_format
from gateway.requests.tools import read_tools
from gateway.requests.types import ChatRequest

OPENAI_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
CONFIG_FIELDS = {"token_limit": "maxTokens", "temperature": "temperature", "top_p": "topP"}
FIELDS = field_rules("Bedrock's Converse API", ("top_k",))
"""What Converse does with each field of a chat; `top_k` and `reasoning_effort` depend on the model."""


def converse_body(
    request: ChatRequest, body: Mapping[str, Any], model: str
) -> tuple[dict[str, Any], list[str]]:
    """The body for Converse, and the names of ignored fields. `model` is the id there.

    Raises InvalidRequest for what the API or the model cannot do, naming the field.
    """
    ignored = check_supported(body, FIELDS, request.model)
    messages, system = messages_and_system(request.messages)
    found: dict[str, Any] = {"messages": messages}
    if system:
        found["system"] = [{"text": system}]
    given = {name: getattr(request, field) for field, name in CONFIG_FIELDS.items()}
    config = {name: value for name, value in given.items() if value is not None}
    if request.stops:
        config["stopSequences"] = request.stops
    if config:
        found["inferenceConfig"] = config
    if tools := _tools(request, messages):
        found["toolConfig"] = tools
    if output := _format(request):
        found["outputConfig"] = output
    if more := _model_fields(request, model):
        found["additionalModelRequestFields"] = more
    return found, ignored


def _tools(request: ChatRequest, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Converse wants the tools that earlier messages call, too. Raises InvalidRequest."""
    choice = read_tools(request)
    if choice is None:
        called = called_functions(messages)
        if called and request.tools is not None:
            what = "Bedrock has no 'none' once tools were called: leave out 'tools' and 'tool_choice'"
            raise refusals.unsupported("tool_choice", what)
        schema = {"json": {"type": "object"}}
        stubs = [{"toolSpec": {"name": name, "inputSchema": schema}} for name in called]
        return {"tools": stubs} if stubs else {}
    tools = []
    for definition in choice.definitions:
        function = definition["function"]
        tool = {
            "name": function["name"],
            "inputSchema": {"json": {"type": "object", **function["parameters"]}},
        }
        if function.get("description"):
            tool["description"] = function["description"]
        if function["name"] in choice.strict:
            tool["strict"] = True
        tools.append({"toolSpec": tool})
    found: dict[str, Any] = {"tools": tools}
    if choice.is_required:
        is_one = len(tools) == 1
        found["toolChoice"] = {"tool": {"name": choice.names[0]}} if is_one else {"any": {}}
    return found


def _format(request: ChatRequest) -> dict[str, Any]:
    schema = read_format(request)
    if schema is None or request.response_format is None:
        return {}
    if schema == {}:
        raise refusals.unsupported(
            "response_format", "Bedrock has no 'json_object': send 'json_schema' with a schema"
        )
    name = request.response_format["json_schema"]["name"]
    structure = {"jsonSchema": {"name": name, "schema": msgspec.json.encode(schema).decode()}}
    return {"textFormat": {"type": "json_schema", "structure": structure}}


def _model_fields(request: ChatRequest, model: str) -> dict[str, Any]:
    """The fields that only some models have. Raises InvalidRequest."""
    found: dict[str, Any] = {}
    is_claude = "anthropic." in model
    if (request.top_k or 0) > 0:
        if not is_claude:
            raise refusals.unsupported("top_k", "on Bedrock only Anthropic's models have 'top_k'")
        found["top_k"] = request.top_k
    effort = request.reasoning_effort
    if effort is None:
        return found
    if is_claude:
        return found | _claude_thinking(effort)
    if "openai." in model:
        return found | {"reasoning_effort": _effort(effort, OPENAI_EFFORTS)}
    if "amazon.nova" in model:
        if effort == "none":
            return found | {"reasoningConfig": {"type": "disabled"}}
        level = _effort(effort, OPENAI_EFFORTS)
        return found | {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": level}}
    raise refusals.unsupported(
        "reasoning_effort", "on Bedrock only the models of Anthropic, OpenAI and Amazon (Nova) have an effort"
    )


def _claude_thinking(effort: str) -> dict[str, Any]:
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    level = _effort(effort, CLAUDE_EFFORTS)
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}


def _effort(effort: str, known: Mapping[str, str]) -> str:
    if effort not in known:
        raise refusals.wrong_value("reasoning_effort", f"expected one of {', '.join(known)}", effort)
    return known[effort]
