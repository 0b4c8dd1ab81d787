"""Every field of Anthropic's reference is honoured, accepted or refused by name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from anthropic.types.message_count_tokens_params import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase

from gateway.anthropic.request import (
    MessagesRequest,
    check_version,
    read_count_request,
    read_messages_request,
)
from gateway.errors import InvalidRequest
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest

BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
CHAT = {"model": "m", "max_completion_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"name": "add", "description": "Adds.", "input_schema": SCHEMA}
FUNCTION = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": SCHEMA}}


def read(**fields: object) -> dict[str, Any]:
    """What a request adds to the plainest chat; the result is a valid chat."""
    chat, *_ = read_messages_request(BODY | fields)
    typed(chat, ChatRequest)
    return {name: value for name, value in chat.items() if name not in CHAT or value != CHAT[name]}


def test_the_tables_are_complete() -> None:
    documented = set(get_type_hints(MessageCreateParamsBase)) | {"stream"}
    sampling = {"temperature", "top_p", "top_k"}  # until version 2023-06-01
    betas = {"context_management", "mcp_servers"}
    assert set(MessagesRequest.__struct_fields__) == documented | sampling | betas
    assert set(MessagesRequest.__struct_fields__) >= set(get_type_hints(MessageCountTokensParams))


@pytest.mark.parametrize(
    ("fields", "chat"),
    [
        ({}, {}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"stop_sequences": ["a"], "temperature": 0.5}, {"stop": ["a"], "temperature": 0.5}),
        ({"stop_sequences": [], "top_k": 3, "top_p": 1}, {"top_k": 3, "top_p": 1}),
        ({"metadata": {"user_id": "x"}, "service_tier": "auto", "speed": "standard"}, {"user": "x"}),
        ({"cache_control": {"type": "ephemeral"}, "container": None, "mcp_servers": []}, {}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"reasoning_effort": "low"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 8000}}, {"reasoning_effort": "medium"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9000}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "adaptive"}}, {"reasoning_effort": "medium"}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}},
            {"reasoning_effort": "xhigh"},
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": SCHEMA},
                }
            },
        ),
        ({"tools": [TOOL]}, {"tools": [FUNCTION]}),
        ({"tools": [{**TOOL, "type": "custom", "eager_input_streaming": True}]}, {"tools": [FUNCTION]}),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        (
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tool_choice": {"type": "tool", "name": "add"}},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
    ],
)
def test_fields_and_their_chat(fields: dict[str, Any], chat: dict[str, Any]) -> None:
    assert read(**fields) == chat


def test_the_system_prompt_comes_first() -> None:
    assert read(system="Be brief.")["messages"] == [
        {"role": "system", "content": "Be brief."},
        *CHAT["messages"],
    ]


def test_a_last_message_of_the_assistant_is_continued() -> None:
    prefill = [*BODY["messages"], {"role": "assistant", "content": "The answer is"}]
    found = read(messages=prefill)
    assert found["continue_final_message"] is True and found["add_generation_prompt"] is False


def test_examples_of_inputs_are_described() -> None:
    (tool,) = read(tools=[{**TOOL, "input_examples": [{"a": 1}], "strict": False}])["tools"]
    assert tool["function"]["description"] == 'Adds.\nExample input: {"a":1}'
    assert tool["function"]["strict"] is False


@pytest.mark.parametrize(
    ("thinking", "is_shown"),
    [
        (None, False),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "omitted"}, False),
        ({"type": "enabled", "budget_tokens": 1024, "display": "summarized"}, True),
        ({"type": "disabled"}, False),
    ],
)
def test_thinking_is_shown_to_those_who_ask(thinking: dict[str, Any] | None, is_shown: bool) -> None:
    assert read_messages_request(BODY | {"thinking": thinking})[1] is is_shown


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"zz": 1}, "zz"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"stop_sequences": ["a"] * 5}, "stop_sequences"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"speed": "fast"}, "speed"),
        ({"metadata": {"zz": 1}}, "metadata.zz"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        (
            {"context_management": {"edits": [{"type": "compact_20260112"}]}},
            "context_management.edits[0].type",
        ),
        ({"context_management": {"zz": 1}}, "context_management.zz"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
        ({"tools": [{**TOOL, "type": "web_search_20250305"}]}, "tools[0].type"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "allowed_callers": ["code"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tool_choice": {"type": "often"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
    ],
)
def test_refused_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert param.rpartition(".")[2].rpartition("]")[0] in caught.value.message


def test_hosted_tools_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'web_search_20250305' is a tool that Anthropic defines"):
        read(tools=[{"type": "web_search_20250305", "name": "web_search"}])


def test_a_prompt_to_count_needs_no_limit() -> None:
    body = {"model": "m", "messages": BODY["messages"], "tools": [TOOL]}
    assert read_count_request(body) == {"model": "m", "messages": CHAT["messages"], "tools": [FUNCTION]}
    fields = {"stream": True, "temperature": 1, "stop_sequences": ["x"], "metadata": {"user_id": "u"}}
    assert read_count_request(BODY | fields)["messages"] == CHAT["messages"]
    with pytest.raises(InvalidRequest, match="max_tokens"):
        read_messages_request(body)


def test_deferred_tools_are_offered_and_hosted_ones_dropped_by_policy() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    tools = [{**TOOL, "defer_loading": True}, search]
    read = read_messages_request(BODY | {"tools": tools}, drops_hosted=True)
    assert read.chat["tools"] == [FUNCTION]
    assert set(read.ignored_fields) == {"tools.defer_loading", "tools.web_search_20250305"}
    with pytest.raises(InvalidRequest, match="hosted_tools: drop"):
        read_messages_request(BODY | {"tools": tools})
    chosen = {"tools": [search], "tool_choice": {"type": "tool", "name": "web_search"}}
    read = read_messages_request(BODY | chosen, drops_hosted=True)
    assert not {"tools", "tool_choice"} & set(read.chat) and "tool_choice" in read.ignored_fields


def test_versions() -> None:
    for version in ("", "2023-06-01", "2026-10-21"):
        check_version(version)
    with pytest.raises(InvalidRequest, match="anthropic-version"):
        check_version("2031-01-01")
