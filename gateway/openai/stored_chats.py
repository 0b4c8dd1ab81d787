"""GET, POST and DELETE /v1/chat/completions[/{id}]: chat completions that were stored."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.openai.objects_endpoint import ObjectsEndpoint, respond_page
from gateway.openai.shape import encode
from gateway.requests.pages import PageQuery, listing
from gateway.web.http_call import HttpCall


class _Labels(msgspec.Struct, frozen=True):
    """What completions are found by."""

    model: str
    metadata: dict[str, str] = {}


_labels = msgspec.json.Decoder(_Labels).decode


class StoredChatsEndpoint(ObjectsEndpoint):
    """What a tenant may do with its stored completions."""

    kind = "chat"
    deleted = "chat.completion.deleted"

    async def list(self, call: HttpCall) -> None:
        """A page, the oldest first: `model`, `metadata[KEY]`, `limit`, `order`, `after`. Raises ApiError."""
        tenant = self.tenant(call)
        query = PageQuery.read(call.query, order="asc")
        model = call.query.get("model")
        wanted = {
            name.removeprefix("metadata[").removesuffix("]"): value
            for name, value in call.query.items()
            if name.startswith("metadata[")
        }

        def fits(record: bytes) -> bool:
            labels = _labels(record)
            return model in (None, labels.model) and wanted.items() <= labels.metadata.items()

        records, has_more = await self.store.page(self.kind, tenant, query, fits)
        chats = [msgspec.json.decode(record) for record in records]
        await call.respond(encode(listing(chats, has_more=has_more)))

    async def list_messages(self, call: HttpCall) -> None:
        """A page of what was asked, the first message first. Raises ApiError."""
        query = PageQuery.read(call.query, order="asc")
        messages = enumerate((await self.stored(call)).items)
        shown = [_message(call.path_id, index, message) for index, message in messages]
        await respond_page(call, query, shown)


def _message(completion_id: str, index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message as the API lists it: its text apart from its parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    shown = {"id": f"{completion_id}-{index}", "content": None if parts else content, "content_parts": parts}
    return {**message, **shown}
