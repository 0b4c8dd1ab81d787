"""What a chat asks for, in Converse's terms, which depend on the model."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.bedrock.request import FIELDS, converse_body
from gateway.requests.field_support import CHAT
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
LOOP = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def body(model: str = "anthropic.x", **fields: object) -> dict[str, Any]:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], **fields}
    return converse_body(typed(chat, ChatRequest), chat, model)[0]


def test_every_field_has_a_rule() -> None:
    assert set(FIELDS) == set(CHAT)


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("us.anthropic.x", "max", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}),
        ("anthropic.x", "none", {"thinking": {"type": "disabled"}}),
        ("openai.gpt-oss-x", "minimal", {"reasoning_effort": "low"}),
        ("amazon.nova-2", "high", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "high"}}),
        ("amazon.nova-2", "none", {"reasoningConfig": {"type": "disabled"}}),
    ],
)
def test_efforts(model: str, effort: str, expected: dict[str, Any]) -> None:
    assert body(model, reasoning_effort=effort)["additionalModelRequestFields"] == expected


def test_tools_that_earlier_messages_call_are_declared() -> None:
    stub = {"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}
    assert body(messages=LOOP)["toolConfig"] == {"tools": [stub]}
    assert "toolConfig" not in body() and "toolConfig" not in body(tools=TOOLS, tool_choice="none")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": LOOP, "tools": TOOLS, "tool_choice": "none"}, "tool_choice"),
        ({"model_id": "meta.x", "reasoning_effort": "low"}, "reasoning_effort"),
        ({"model_id": "openai.x", "reasoning_effort": "none"}, "reasoning_effort"),
        ({"model_id": "meta.x", "top_k": 5}, "top_k"),
        ({"n": 2}, "n"),
        ({"seed": 1}, "seed"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"zz": 1}, "zz"),
    ],
)
def test_what_the_api_or_the_model_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        body(fields.pop("model_id", "anthropic.x"), **fields)
    assert caught.value.param == param
