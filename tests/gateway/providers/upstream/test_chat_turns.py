"""Turns of a chat in another API's words: joined by role, system messages apart, bad roles named."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.providers.upstream.chat_turns import answered_call, turns_and_system


def texts(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    return [{"text": f"{where} {message['content']}"}] if message["content"] else []


def test_messages_of_a_role_are_one_turn_and_empty_ones_are_none() -> None:
    roles = ("system", "assistant", "user", "tool", "assistant", "developer", "user")
    messages = [{"role": role, "content": "" if at == 1 else str(at)} for at, role in enumerate(roles)]
    turns, system = turns_and_system(messages, texts, "model", "parts")
    assert turns == [
        {"role": "user", "parts": [{"text": "messages[2] 2"}, {"text": "messages[3] 3"}]},
        {"role": "model", "parts": [{"text": "messages[4] 4"}]},
        {"role": "user", "parts": [{"text": "messages[6] 6"}]},
    ]
    assert system == "0\n\n5"


def test_the_message_of_an_unknown_role_is_named() -> None:
    with pytest.raises(InvalidRequest, match="expected one of system") as found:
        turns_and_system([{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}], texts)
    assert found.value.param == "messages[1].role"


def test_a_result_names_its_call() -> None:
    assert answered_call({"tool_call_id": "c1"}, "messages[0]") == "c1"
    with pytest.raises(InvalidRequest) as found:
        answered_call({}, "messages[0]")
    assert found.value.param == "messages[0].tool_call_id"
