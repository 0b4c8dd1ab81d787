"""GET, POST and DELETE /v1/chat/completions[/{id}]: chat completions that were stored."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.exchange.shape import encode
from gateway.requests import refusals
from gateway.requests.pages import PageQuery, listing
from gateway.stored.objects_endpoint import ObjectsEndpoint, respond_page
from gateway.web.http_call import HttpCall

MAX_LABELS = 17
"""What chats can be listed by at once: their model, and as much metadata as one has."""


class StoredChatsEndpoint(ObjectsEndpoint):
    """What a tenant may do with its stored completions."""

    kind = "chat"
    deleted = "chat.completion.deleted"

    async def list(self, call: HttpCall) -> None:
        """A page, the oldest first: `model`, `metadata[KEY]`, `limit`, `order`, `after`. Raises ApiError."""
        tenant = self.tenant(call)
        query = PageQuery.read(call.query, order="asc")
        labels = {
            name: value
            for name, value in call.query.items()
            if name == "model" or name.startswith("metadata[")
        }
        if len(labels) > MAX_LABELS:
            raise refusals.wrong_value("metadata", f"expected at most {MAX_LABELS - 1} keys")
        records, has_more = await self.store.page(self.kind, tenant, query, labels)
        chats = [msgspec.json.decode(record) for record in records]
        await call.respond(encode(listing(chats, has_more=has_more)))

    async def list_messages(self, call: HttpCall) -> None:
        """A page of what was asked, the first message first. Raises ApiError."""
        query = PageQuery.read(call.query, order="asc")
        found, has_more = await self.store.page_of_items(self.kind, call.path_id, self.tenant(call), query)
        shown = [_message(item.id, msgspec.json.decode(item.text)) for item in found]
        await respond_page(call, shown, has_more=has_more)


def _message(message_id: str, message: dict[str, Any]) -> dict[str, Any]:
    """A message as the API lists it: its text apart from its parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {**message, "id": message_id, "content": None if parts else content, "content_parts": parts}
