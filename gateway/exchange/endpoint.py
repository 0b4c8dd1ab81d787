"""What the pipeline has to know of an endpoint that calls a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from gateway.answer import Answer
from gateway.providers.base import ModelCall, Provider
from gateway.requests.types import ChatRequest, ModelRequest

Ask = Callable[[Provider, ModelCall[Any]], Awaitable[Answer]]
"""Calls the method of a provider that answers. Raises ApiError."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Messages and Responses are translated to chat and back: the pipeline sees chats of another name."""

    name: str  # one of `policies.endpoints`
    request: type[ModelRequest]  # after the translation
    ask: Ask
    is_translated: bool = False
    clips_limit: bool = False  # see ModelCall


def ask_chat(provider: Provider, call: ModelCall[ChatRequest]) -> Awaitable[Answer]:
    """Ask for a chat's answer."""
    return provider.chat(call)


CHAT: Final = Endpoint(name="chat", request=ChatRequest, ask=ask_chat)
"""The one that a dry run assumes."""
