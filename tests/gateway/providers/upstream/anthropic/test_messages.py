"""The messages of a chat as Anthropic's."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.anthropic.messages import may_think, messages_and_system
from gateway.requests.reasoning_details import details

USER = {"role": "user", "content": "Hi."}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED: dict[str, Any] = {"role": "assistant", "content": "Text.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "2"}


def test_results_of_parallel_calls_are_one_message() -> None:
    second = {**CALL, "id": "c2"}
    called = {**CALLED, "tool_calls": [CALL, second]}
    messages, _ = messages_and_system([USER, called, RESULT, {**RESULT, "tool_call_id": "c2"}])
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [block["tool_use_id"] for block in messages[2]["content"]] == ["c1", "c2"]
    assert [block["type"] for block in messages[1]["content"]] == ["text", "tool_use", "tool_use"]


def test_system_messages_are_hoisted() -> None:
    messages, system = messages_and_system(
        [{"role": "system", "content": "A"}, USER, {"role": "developer", "content": "B"}, USER]
    )
    assert system == "A\n\nB" and len(messages) == 1


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    broken = {**CALL, "function": {"name": "f", "arguments": "{"}}
    messages, _ = messages_and_system([{**CALLED, "tool_calls": [broken]}])
    assert messages[0]["content"][1]["input"] == {"invalid_arguments": "{"}


def test_reasoning_goes_back_only_with_its_signature() -> None:
    unsigned = {**CALLED, "reasoning_content": "hm"}
    signed = {**unsigned, "reasoning_details": details([("hm", "x")])}
    assert messages_and_system([unsigned])[0][0]["content"][0]["type"] == "text"
    assert messages_and_system([signed])[0][0]["content"][0] == {
        "type": "thinking",
        "thinking": "hm",
        "signature": "x",
    }
    assert not may_think([USER, unsigned, RESULT]) and may_think([USER, signed, RESULT])
    assert may_think([USER, unsigned, RESULT, USER]) and may_think([USER])


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url.url"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x"}}]},
            "messages[0].content[0].image_url.url",
        ),
    ],
)
def test_errors_name_the_place(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_and_system([message])
    assert caught.value.param == param
