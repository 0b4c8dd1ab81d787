"""Content blocks become the messages of a chat, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.anthropic.content import chat_messages, system_message
from gateway.errors import InvalidRequest
from gateway.requests.reasoning_details import REDACTED, details

TEXT = {"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}


def user(*blocks: object) -> list[dict[str, Any]]:
    return chat_messages([{"role": "user", "content": list(blocks)}])


def assistant(*blocks: object) -> list[dict[str, Any]]:
    return chat_messages([{"role": "assistant", "content": list(blocks)}])


def test_text_is_a_string_where_one_text_is_all() -> None:
    assert chat_messages([{"role": "user", "content": "Hi."}]) == [{"role": "user", "content": "Hi."}]
    assert user(TEXT) == [{"role": "user", "content": "Hi."}]
    both = [{"type": "text", "text": "Hi."}] * 2
    assert user(TEXT, TEXT) == [{"role": "user", "content": both}]


def test_system_is_a_text_or_blocks() -> None:
    assert system_message("Be brief.") == {"role": "system", "content": "Be brief."}
    assert system_message([TEXT, TEXT]) == {"role": "system", "content": "Hi.\nHi."}
    assert chat_messages([{"role": "system", "content": [TEXT]}]) == [{"role": "system", "content": "Hi."}]


def test_an_assistants_blocks_are_one_message() -> None:
    thinking = {"type": "thinking", "thinking": "1 + 1", "signature": "penstock:x"}
    message = {"role": "assistant", "content": "Hi.", "reasoning_content": "1 + 1", "tool_calls": [CALL]}
    assert assistant(thinking, TEXT, USE) == [message]
    theirs = {**thinking, "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "y"}
    signed = details([("1 + 1", "x"), ("", REDACTED + "y")])
    assert assistant(thinking, TEXT, USE) == [message]
    assert assistant(theirs, redacted, TEXT, USE) == [{**message, "reasoning_details": signed}]
    (both,) = assistant(theirs, theirs, TEXT, USE)
    assert both["reasoning_content"] == "1 + 1\n1 + 1" and len(both["reasoning_details"]) == 2
    assert assistant(USE) == [{"role": "assistant", "content": None, "tool_calls": [CALL]}]


def test_tool_results_come_before_the_rest_of_a_message() -> None:
    tool = {"role": "tool", "tool_call_id": "toolu_1", "content": "2"}
    assert user(RESULT, RESULT, TEXT) == [tool, tool, {"role": "user", "content": "Hi."}]
    assert user({**RESULT, "content": [TEXT]}) == [{**tool, "content": "Hi."}]
    assert user({**RESULT, "content": []}) == [{**tool, "content": ""}]
    assert user({**RESULT, "is_error": True}) == [{**tool, "content": "Error: 2"}]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "url", "url": "https://x/y.png"}, "https://x/y.png"),
        ({"type": "base64", "media_type": "image/png", "data": "AAAA"}, "data:image/png;base64,AAAA"),
    ],
)
def test_images(source: dict[str, str], url: str) -> None:
    (message,) = user(TEXT, {"type": "image", "source": source})
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": url}}


def test_documents_of_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Body."}
    block = {"type": "document", "source": source, "title": "Title", "context": "Context"}
    assert user(block)[0]["content"] == "Title\nContext\nBody."
    parts = {"type": "content", "content": [TEXT]}
    assert user({"type": "document", "source": parts})[0]["content"] == "Hi."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("x", "messages[0]"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "name": "x"}, "messages[0].name"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [USE]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [TEXT, RESULT]}, "messages[0].content[1]"),
        ({"role": "user", "content": [{**TEXT, "zz": 1}]}, "messages[0].content[0].zz"),
        (
            {"role": "user", "content": [{**RESULT, "content": [USE]}]},
            "messages[0].content[0].content[0].type",
        ),
        ({"role": "assistant", "content": [RESULT]}, "messages[0].content[0].type"),
        (
            {"role": "assistant", "content": [{"type": "redacted_thinking"}]},
            "messages[0].content[0].data",
        ),
        ({"role": "assistant", "content": [{**USE, "input": 1}]}, "messages[0].content[0].input"),
        (
            {"role": "user", "content": [{"type": "image", "source": {"type": "file", "url": None}}]},
            "messages[0].content[0].source.type",
        ),
        (
            {"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "x"}}]},
            "messages[0].content[0].source.type",
        ),
    ],
)
def test_errors_name_the_place(message: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_messages([message])
    assert caught.value.param == param
    assert f"'{param}" in caught.value.message or caught.value.code == "unsupported_parameter"


def test_a_block_of_another_type_is_named() -> None:
    with pytest.raises(InvalidRequest, match="'web_search_tool_result' is not supported here"):
        user({"type": "web_search_tool_result"})
