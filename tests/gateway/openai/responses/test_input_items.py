"""Input items are stored in one form and become the messages of a chat, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from gateway.errors import InvalidRequest
from gateway.openai.responses.input_items import chat_messages, read_items

ITEM: TypeAdapter[ResponseItem] = TypeAdapter(ResponseItem)
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2"}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
ANSWER = {"role": "assistant", "content": [{"type": "output_text", "text": "4", "annotations": []}]}


def messages(*items: object) -> list[dict[str, Any]]:
    return chat_messages(read_items(list(items)))


def chat_call(identifier: str) -> dict[str, Any]:
    return {"id": identifier, "type": "function", "function": {"name": "add", "arguments": "{}"}}


def test_items_are_stored_as_openai_lists_them() -> None:
    items = read_items([{"role": "user", "content": "Hi."}, CALL, OUTPUT, REASONING, ANSWER])
    for item in items:
        found = ITEM.validate_python(item)
        assert found.id == item["id"]
    assert len({item["id"] for item in items}) == 5 and items[3]["id"] == "rs_1"


def test_a_text_is_a_message_of_the_user() -> None:
    (item,) = read_items("Hi.")
    assert (item["type"], item["role"], item["status"]) == ("message", "user", "completed")
    assert item["content"] == [{"type": "input_text", "text": "Hi."}]
    assert chat_messages([item]) == [{"role": "user", "content": "Hi."}]


def test_roles_and_parts() -> None:
    image = {"type": "input_image", "image_url": "https://x/y.png"}
    text = {"type": "input_text", "text": "Hi."}
    assert messages({"role": "developer", "content": "S"}, {"role": "user", "content": [text, image]}) == [
        {"role": "developer", "content": "S"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi."},
                {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "auto"}},
            ],
        },
    ]
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages(refusal) == [{"role": "assistant", "content": "No."}]


def test_parallel_calls_are_one_message_and_others_are_not() -> None:
    second = {**CALL, "call_id": "c2"}
    result = {**OUTPUT, "call_id": "c2"}
    tool = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    together = [chat_call("c1"), chat_call("c2")]
    assert messages(CALL, second, OUTPUT, result) == [
        {"role": "assistant", "content": None, "tool_calls": together},
        tool,
        {**tool, "tool_call_id": "c2"},
    ]
    assert messages(CALL, OUTPUT, second, result) == [
        {"role": "assistant", "content": None, "tool_calls": [chat_call("c1")]},
        tool,
        {"role": "assistant", "content": None, "tool_calls": [chat_call("c2")]},
        {**tool, "tool_call_id": "c2"},
    ]


def test_reasoning_belongs_to_what_follows_it() -> None:
    assert messages(REASONING, CALL, OUTPUT, REASONING, ANSWER) == [
        {"role": "assistant", "content": None, "tool_calls": [chat_call("c1")], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "4", "reasoning_content": "hm"},
    ]
    assert messages(ANSWER, CALL, OUTPUT)[0]["tool_calls"] == [chat_call("c1")]
    assert messages(REASONING, {"role": "user", "content": "Hi."}) == [{"role": "user", "content": "Hi."}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ("x", "input[0]"),
        ({}, "input[0].type"),
        ({"type": "web_search_call"}, "input[0].type"),
        ({"type": "item_reference", "id": "x"}, "input[0].type"),
        ({"role": "tool", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": []}, "input[0].content"),
        ({"role": "user", "content": ["x"]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        ({"role": "user", "content": "x", "zz": 1}, "input[0].zz"),
        ({**CALL, "arguments": None}, "input[0].arguments"),
        ({**OUTPUT, "output": [1]}, "input[0].output[0]"),
        ({**REASONING, "content": [{"type": "reasoning_text"}]}, "input[0].content[0].text"),
    ],
)
def test_errors_name_the_place(item: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_items([item])
    assert caught.value.param == param


def test_an_item_of_another_type_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'web_search_call' items are not supported"):
        read_items([{"type": "web_search_call"}])
