"""GET and DELETE /v1/responses/{id}, its input items, and cancel."""

from __future__ import annotations

from gateway.auth import KeyRing
from gateway.errors import InvalidRequest
from gateway.openai.object_store import ObjectStore
from gateway.openai.shape import encode
from gateway.requests import refusals
from gateway.requests.pages import PageQuery, listing
from gateway.web.http_call import HttpCall


class StoredResponsesEndpoint:
    """What a tenant may do with its stored responses."""

    def __init__(self, keys: KeyRing, store: ObjectStore) -> None:
        self._keys = keys
        self._store = store

    async def show(self, call: HttpCall) -> None:
        """The response, as it was answered. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        if call.query.get("stream", "false") != "false":
            raise refusals.unsupported("stream", "a stored response cannot be streamed again")
        await call.respond((await self._store.get("response", call.path_id, tenant)).record)

    async def delete(self, call: HttpCall) -> None:
        """Erase the response. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        await self._store.delete("response", call.path_id, tenant)
        await call.respond(encode({"id": call.path_id, "object": "response", "deleted": True}))

    async def cancel(self, call: HttpCall) -> None:
        """Refuse: only responses that are generated in the background can be cancelled. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        await self._store.get("response", call.path_id, tenant)
        raise InvalidRequest("Only responses in the background can be cancelled; this one is complete.")

    async def list_items(self, call: HttpCall) -> None:
        """A page of the input: `limit`, `order` (default: desc), `after` an item's id. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        query = PageQuery.read(call.query)
        stored = await self._store.get("response", call.path_id, tenant)
        items, has_more = query.part(stored.items)
        await call.respond(encode(listing(items, has_more=has_more, no_id="")))
