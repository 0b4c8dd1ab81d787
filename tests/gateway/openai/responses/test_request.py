"""Every field of OpenAI's reference is honoured, accepted or refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from gateway.errors import InvalidRequest
from gateway.openai.responses.request import ResponsesRequest, read_request
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest

BODY = {"model": "m", "input": "Hi."}
SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}
FUNCTION = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True},
}
NAMED = {"type": "function", "function": {"name": "add"}}


def read(**fields: object) -> dict[str, Any]:
    """What a request says to the chat, besides the model; with messages it is a valid chat."""
    chat = read_request(BODY | fields).chat
    typed({**chat, "messages": [{"role": "user", "content": "Hi."}]}, ChatRequest)
    return {name: value for name, value in chat.items() if name != "model"}


def test_the_table_is_complete() -> None:
    assert set(ResponsesRequest.__struct_fields__) == set(get_type_hints(ResponseCreateParamsBase)) | {
        "stream",
        "client_metadata",  # Codex's
    }


@pytest.mark.parametrize(
    ("fields", "chat"),
    [
        ({}, {}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"max_output_tokens": 9}, {"max_completion_tokens": 9}),
        ({"temperature": 0, "top_p": 1}, {"temperature": 0, "top_p": 1}),
        ({"metadata": {"a": "b"}, "store": False, "truncation": "disabled", "background": False}, {}),
        ({"include": ["reasoning.encrypted_content"], "max_tool_calls": 3, "conversation": None}, {}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True, "top_logprobs": 0}),
        ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"prompt_cache_key": "k", "user": "u"}, {"prompt_cache_key": "k", "user": "u"}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None}}, {}),
        ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        ({"text": {"format": {"type": "text"}}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        ({"tools": [TOOL]}, {"tools": [FUNCTION]}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"tools": [], "tool_choice": "auto"}, {}),
        ({"tools": [TOOL], "tool_choice": "required"}, {"tools": [FUNCTION], "tool_choice": "required"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}},
            {"tools": [FUNCTION], "tool_choice": NAMED},
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [{"type": "function", "name": "add"}],
                },
            },
            {
                "tools": [FUNCTION],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [NAMED]},
                },
            },
        ),
    ],
)
def test_fields_and_their_chat(fields: dict[str, Any], chat: dict[str, Any]) -> None:
    assert read(**fields) == chat


def test_what_the_answer_shows() -> None:
    assert read_request(BODY | {"reasoning": {"summary": "auto"}}).wants_summary
    assert read_request(BODY | {"reasoning": {"generate_summary": "concise"}}).wants_summary
    assert not read_request(BODY | {"reasoning": {"effort": "high"}}).wants_summary
    assert read_request(BODY).is_stored and not read_request(BODY | {"store": False}).is_stored


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"zz": 1}, "zz"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True, "store": False}, "store"),
        ({"conversation": ["conv_1"]}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "always"}, "truncation"),
        ({"include": ["everything"]}, "include"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "often"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}}, "tool_choice.tools[0].type"),
    ],
)
def test_refused_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert (caught.value.param or "").startswith(param)
    assert f"'{param}" in caught.value.message


def test_a_lone_surrogate_is_refused_before_anything_is_generated() -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        read(metadata={"a": "\ud800"})
