"""The user's texts in a request."""

from __future__ import annotations

from typing import Any

from gateway.requests.types import ChatRequest, CompletionRequest, ModelRequest


def user_turns(request: ModelRequest) -> list[str]:
    """The texts of the user's turns, oldest first; a completion's prompt is one, other requests have none."""
    if isinstance(request, ChatRequest):
        messages = request.messages
        return [_text(message.get("content")) for message in messages if message.get("role") == "user"]
    if isinstance(request, CompletionRequest) and isinstance(request.prompt, str):
        return [request.prompt]
    return []


def _text(content: Any) -> str:  # noqa: ANN401 - as the client wrote it
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
