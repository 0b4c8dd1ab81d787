from __future__ import annotations

from gateway.exchange.turns import user_turns
from gateway.requests.parse import typed
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest


def test_the_texts_of_the_users_turns() -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": parts},
    ]
    assert user_turns(typed({"model": "m", "messages": messages}, ChatRequest)) == ["a", "b"]
    assert user_turns(typed({"model": "m", "prompt": "p"}, CompletionRequest)) == ["p"]
    assert user_turns(typed({"model": "m", "prompt": [1, 2]}, CompletionRequest)) == []
    assert user_turns(typed({"model": "m", "input": "p"}, EmbeddingRequest)) == []
