"""Which model answered the last turn of a conversation, as far as one gateway worker knows."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from gateway.exchange.exchange import Exchange
from gateway.requests.types import ChatRequest

MAX_CONVERSATIONS = 20_000


class Conversations:
    """Bounded: the conversations that were continued longest ago are forgotten first."""

    def __init__(self) -> None:
        self._models: OrderedDict[bytes, str] = OrderedDict()

    def previous_model(self, exchange: Exchange) -> str:
        """The model that wrote the last answer in a chat's messages; "" when that is not known."""
        request = exchange.request
        if not isinstance(request, ChatRequest):
            return ""
        roles = [message.get("role") for message in request.messages]
        if "assistant" not in roles:
            return ""
        end = len(roles) - 1 - roles[::-1].index("assistant")
        return self._models.get(_key(exchange, request.messages[:end]), "")

    def remember(self, exchange: Exchange) -> None:
        """The exchange has been answered by its model."""
        conversation = b"" if exchange.routed is None else exchange.routed.conversation
        if conversation and exchange.model is not None and exchange.error is None:
            self._models[conversation] = exchange.model.name
            self._models.move_to_end(conversation)
            if len(self._models) > MAX_CONVERSATIONS:
                self._models.popitem(last=False)


def conversation_of(exchange: Exchange) -> bytes:
    """What `remember` needs of a chat, before rules change its messages; b"" of other requests."""
    request = exchange.request
    return _key(exchange, request.messages) if isinstance(request, ChatRequest) else b""


def _key(exchange: Exchange, messages: Sequence[dict[str, Any]]) -> bytes:
    """A digest of the tenant and the text of the messages."""
    text = repr((exchange.principal.tenant, messages)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=16).digest()
