"""GET, POST and DELETE /v1/chat/completions[/{id}]: chat completions that were stored."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.auth import KeyRing
from gateway.openai.object_store import ObjectStore, StoredObject
from gateway.openai.shape import encode
from gateway.requests.pages import PageQuery, listing
from gateway.requests.parse import decode_body, typed
from gateway.requests.types import Metadata
from gateway.web.http_call import HttpCall

MAX_BODY_BYTES = 64 * 1024


class MetadataChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that replaces an object's metadata."""

    metadata: Metadata | None


class _Labels(msgspec.Struct, frozen=True):
    """What completions are found by."""

    model: str
    metadata: dict[str, str] = {}


_labels = msgspec.json.Decoder(_Labels).decode


class StoredChatsEndpoint:
    """What a tenant may do with its stored completions."""

    def __init__(self, keys: KeyRing, store: ObjectStore) -> None:
        self._keys = keys
        self._store = store

    async def list(self, call: HttpCall) -> None:
        """A page, the oldest first: `model`, `metadata[KEY]`, `limit`, `order`, `after`. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
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

        records, has_more = await self._store.page("chat", tenant, query, fits)
        chats = [msgspec.json.decode(record) for record in records]
        await call.respond(encode(listing(chats, has_more=has_more)))

    async def show(self, call: HttpCall) -> None:
        """The completion. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        await call.respond((await self._store.get("chat", call.path_id, tenant)).record)

    async def update(self, call: HttpCall) -> None:
        """Replace its metadata. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        body = typed(decode_body(await call.read_json_bytes(MAX_BODY_BYTES)), MetadataChange)
        changed = await self._store.change("chat", call.path_id, tenant, with_metadata(body))
        await call.respond(changed.record)

    async def delete(self, call: HttpCall) -> None:
        """Erase it. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        await self._store.delete("chat", call.path_id, tenant)
        deleted = {"id": call.path_id, "object": "chat.completion.deleted", "deleted": True}
        await call.respond(encode(deleted))

    async def list_messages(self, call: HttpCall) -> None:
        """A page of what was asked, the first message first. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        query = PageQuery.read(call.query, order="asc")
        stored = await self._store.get("chat", call.path_id, tenant)
        messages = [_message(call.path_id, index, message) for index, message in enumerate(stored.items)]
        found, has_more = query.part(messages)
        await call.respond(encode(listing(found, has_more=has_more)))


def with_metadata(body: MetadataChange) -> Any:  # noqa: ANN401
    """A change of an object: its metadata replaced."""

    def change(stored: StoredObject) -> StoredObject:
        record = {**msgspec.json.decode(stored.record), "metadata": body.metadata or {}}
        return StoredObject(encode(record), stored.items)

    return change


def _message(completion_id: str, index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message as the API lists it: its text apart from its parts."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {
        **message,
        "id": f"{completion_id}-{index}",
        "content": None if parts else content,
        "content_parts": parts,
    }
