"""Estimates of what a request makes a model read."""

from __future__ import annotations

import pytest

from gateway.requests.parse import typed
from gateway.requests.token_estimate import estimate_input, estimate_prompt, estimate_tokens
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": "x" * 400}}


def chat(*contents: object, **fields: object) -> ChatRequest:
    messages = [{"role": "user", "content": content} for content in contents]
    return typed({"model": "m", "messages": messages, **fields}, ChatRequest)


@pytest.mark.parametrize(("characters", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (400, 100)])
def test_tokens_are_rounded_up(characters: int, tokens: int) -> None:
    assert estimate_tokens(characters) == tokens


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("12345678", 2),
        ("日本語日本語日本", 2),  # characters, not bytes
        ("🙂🙂🙂🙂", 1),
        ([{"type": "text", "text": "1234"}, IMAGE], 1),
        ([IMAGE], 0),
        ("", 0),
    ],
)
def test_a_prompt_is_its_texts(content: object, tokens: int) -> None:
    assert estimate_prompt(chat(content)) == tokens
    assert estimate_input(chat(content)) == max(1, tokens)


def test_tools_and_earlier_calls_are_read_too() -> None:
    plain = chat("12345678")
    assert estimate_input(chat("12345678", tools=[TOOL])) > estimate_input(plain) + 10
    messages = [{"role": "user", "content": "1234"}, {"role": "assistant", "tool_calls": [CALL]}]
    assert estimate_input(typed({"model": "m", "messages": messages}, ChatRequest)) > 100


@pytest.mark.parametrize(
    ("inputs", "tokens"), [("12345678", 2), (["12345", "1"], 3), ([5, 6, 7], 3), ([[1, 2], [3]], 3)]
)
def test_inputs_are_texts_or_token_ids(inputs: object, tokens: int) -> None:
    assert estimate_input(typed({"model": "m", "input": inputs}, EmbeddingRequest)) == tokens
    assert estimate_input(typed({"model": "m", "prompt": inputs}, CompletionRequest)) == tokens
