"""`store: true` of a chat: its completion is kept here, for every model, and its upstream is not asked to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.answer import Delta, Generated, Usage
from gateway.auth import Principal
from gateway.errors import InvalidRequest
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import CollectedChoice, encode
from gateway.exchange.translation import Translation
from gateway.openai.chat import ChatShape, chat_shape
from gateway.requests import refusals
from gateway.stored.object_store import ObjectStore, StoredObject


class StoringShape:
    """A chat's shape that also keeps the whole body of an answer that is streamed."""

    def __init__(self, shape: ChatShape) -> None:
        self.response_id = shape.response_id
        self.body = b""  # of the whole answer, at its end
        self._shape = shape
        self._choices: dict[int, CollectedChoice] = {}

    def opening(self) -> bytes:
        """Events before the first delta."""
        return self._shape.opening()

    def chunk(self, delta: Delta) -> bytes:
        """The events of one delta, which is collected for the store."""
        events = self._shape.chunk(delta)
        self._choices.setdefault(delta.index, CollectedChoice()).add(delta)
        return events

    def closing(self, usage: Usage) -> bytes:
        """Events after the last delta; sets `body`."""
        self.body = self._shape.whole([self._choices[index] for index in sorted(self._choices)], usage)
        return self._shape.closing(usage)

    def whole(self, choices: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed; sets `body`."""
        self.body = self._shape.whole(choices, usage)
        return self.body


class ChatStoring(Translation):
    """One chat; without `store: true` it does nothing."""

    is_needed = False
    _shape: StoringShape  # set by `shape`

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._tenant = ""
        self._messages = b""

    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """The body without `store`. Raises InvalidRequest where the policies store nothing."""
        if body.get("store") is not True:
            return body
        if not self._store.is_enabled:
            what = "'store' is not supported: the policies store nothing. Leave it out"
            raise refusals.unsupported("store", what)
        try:
            self._messages = encode(body.get("messages"))
        except UnicodeEncodeError:
            raise InvalidRequest("The body holds a text that is not Unicode: a lone surrogate.") from None
        if len(self._messages) > self._store.max_object_bytes:
            raise self._store.too_large("messages")
        self.is_needed, self._tenant = True, principal.tenant
        return {name: value for name, value in body.items() if name != "store"}

    def shape(self, exchange: Exchange, answer: Generated) -> StoringShape:
        """Encodes the answer as a chat and keeps it for the store."""
        self._shape = StoringShape(chat_shape(exchange, answer))
        return self._shape

    async def finish(self) -> None:
        """Store the completion. Raises Unavailable."""
        completion = {"metadata": {}, **msgspec.json.decode(self._shape.body)}
        items = msgspec.json.decode(self._messages)
        stored = StoredObject(encode(completion))
        await self._store.put("chat", self._shape.response_id, self._tenant, stored, items)
