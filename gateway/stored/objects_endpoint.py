"""What the endpoints of stored objects have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from gateway.auth import KeyRing
from gateway.exchange.shape import encode
from gateway.requests.pages import listing
from gateway.requests.parse import decode_body, typed
from gateway.requests.types import Metadata
from gateway.stored.object_store import Kind, ObjectStore, StoredObject
from gateway.web.http_call import HttpCall

MAX_METADATA_BYTES = 64 * 1024
"""Size of a body that has nothing but metadata."""


class NewMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What replaces the metadata of an object."""

    metadata: Metadata | None


class ObjectsEndpoint:
    """What a tenant may do with its objects of one kind."""

    kind: ClassVar[Kind]
    deleted: ClassVar[str]
    """The type of the object that confirms a deletion."""

    def __init__(self, keys: KeyRing, store: ObjectStore) -> None:
        self._keys = keys
        self.store = store

    def tenant(self, call: HttpCall) -> str:
        """The caller's. Raises Unauthorized."""
        return self._keys.identify(call.authorization).tenant

    async def stored(self, call: HttpCall) -> StoredObject:
        """The object of the path. Raises NotFound."""
        return await self.store.get(self.kind, call.path_id, self.tenant(call))

    async def show(self, call: HttpCall) -> None:
        """The object. Raises NotFound."""
        await call.respond((await self.stored(call)).record)

    async def update(self, call: HttpCall) -> None:
        """Replace its metadata. Raises ApiError."""
        tenant = self.tenant(call)
        body = typed(decode_body(await call.read_json_bytes(MAX_METADATA_BYTES)), NewMetadata)

        def change(stored: StoredObject) -> StoredObject:
            record = {**msgspec.json.decode(stored.record), "metadata": body.metadata or {}}
            return replace(stored, record=encode(record))

        await call.respond((await self.store.change(self.kind, call.path_id, tenant, change)).record)

    async def delete(self, call: HttpCall) -> None:
        """Erase the object. Raises NotFound."""
        await self.store.delete(self.kind, call.path_id, self.tenant(call))
        await call.respond(encode({"id": call.path_id, "object": self.deleted, "deleted": True}))


async def respond_page(call: HttpCall, entries: Sequence[dict[str, Any]], *, has_more: bool) -> None:
    """Send a page of entries, each with an `id`."""
    await call.respond(encode(listing(entries, has_more=has_more, no_id="")))
