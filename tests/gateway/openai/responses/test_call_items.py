"""Items of calls and outputs: stored as they came, and as messages of a chat."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.openai.responses.call_items import shell_action
from gateway.openai.responses.input_items import chat_messages, read_items
from gateway.openai.responses.tools import OfferedTools

SHELL = {"type": "exec", "command": ["ls", "-l"], "env": {"A": "b"}, "timeout_ms": 9}
ITEMS: list[dict[str, Any]] = [
    {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "a\nb"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    {"type": "local_shell_call", "id": "lsh_1", "call_id": "c2", "action": SHELL, "status": "completed"},
    {"type": "local_shell_call_output", "id": "lsh_1", "output": "files"},
    {"type": "tool_search_call", "call_id": "c3", "arguments": {"query": "x"}, "execution": "client"},
    {"type": "tool_search_output", "call_id": "c3", "tools": [{"type": "function", "name": "found"}]},
    {"type": "function_call", "call_id": "c4", "namespace": "s", "name": "found", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c4", "output": "ok"},
    {"type": "additional_tools", "role": "developer", "tools": []},
]


def test_every_kind_of_call_is_a_function_of_the_chat() -> None:
    items = read_items(ITEMS)
    tools = OfferedTools()
    tools.add(
        [
            {"type": "function", "name": "found"},
            {"type": "namespace", "name": "s", "tools": [{"type": "function", "name": "found"}]},
        ]
    )
    messages = chat_messages(items, tools)
    calls = [call["function"] for each in messages for call in each.get("tool_calls", ())]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("patch", {"input": "a\nb"}),
        ("local_shell", {"command": ["ls", "-l"], "timeout_ms": 9, "env": {"A": "b"}}),
        ("tool_search", {"query": "x"}),
        ("s__found", {}),
    ]
    results = [(each["tool_call_id"], each["content"]) for each in messages if each["role"] == "tool"]
    assert results == [("c1", "done"), ("c2", "files"), ("c3", '{"tools":["found"]}'), ("c4", "ok")]


def test_stored_items_are_those_that_were_sent() -> None:
    items = read_items(ITEMS)
    for item, sent in zip(items, ITEMS, strict=True):
        assert item["id"] and all(item[name] == value for name, value in sent.items())
    again = read_items(items)
    assert again == items


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ({"command": ["ls"]}, ["ls"]),
        ({"command": "ls | wc"}, ["bash", "-lc", "ls | wc"]),
        ("ls", ["bash", "-lc", "ls"]),
        ({"command": 5}, []),
        (None, []),
    ],
)
def test_a_shell_action_is_valid_whatever_a_model_writes(arguments: object, command: list[str]) -> None:
    assert shell_action(arguments) == {"type": "exec", "command": command, "env": {}}


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "custom_tool_call", "call_id": "c", "name": "n"}, "input[0].input"),
        ({"type": "local_shell_call", "call_id": "c", "action": {}}, "input[0].action.command"),
        ({"type": "local_shell_call_output", "output": "x"}, "input[0].call_id"),
        ({"type": "web_search_call", "id": "x"}, "input[0].type"),
        ({"type": ["x"]}, "input[0].type"),
    ],
)
def test_errors_name_the_field(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_items([item])
    assert refused.value.param == param
