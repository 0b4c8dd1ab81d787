"""GET and DELETE /v1/responses/{id}, its input items and events, and cancel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec

from gateway.auth import KeyRing
from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.exchange.shape import encode
from gateway.requests import refusals
from gateway.requests.pages import PageQuery
from gateway.stored.background import BackgroundResponses
from gateway.stored.object_store import ObjectStore, StoredObject
from gateway.stored.objects_endpoint import ObjectsEndpoint, respond_page
from gateway.stored.send_events import send_events
from gateway.web.http_call import HttpCall

POLL_S = 0.5
"""How often a stream is looked for that another worker generates."""
_LOST = {"code": "server_error", "message": "The process that generated the response has ended."}


class StoredResponsesEndpoint(ObjectsEndpoint):
    """What a tenant may do with its stored responses."""

    kind = "response"
    deleted = "response"

    def __init__(self, keys: KeyRing, store: ObjectStore, background: BackgroundResponses) -> None:
        super().__init__(keys, store)
        self._background = background

    async def stored(self, call: HttpCall) -> StoredObject:
        """The response; one that has lost its process has failed. Raises NotFound."""
        stored = await super().stored(call)
        if not 0.0 < stored.leased_until_s < self.store.now_s():
            return stored
        failed = {**msgspec.json.decode(stored.record), "status": "failed", "error": _LOST}
        return replace(stored, record=encode(failed), leased_until_s=0.0)

    async def show(self, call: HttpCall) -> None:
        """The response, or with `stream` its events after the number `starting_after`. Raises ApiError."""
        if call.query.get("stream", "false") == "false":
            await super().show(call)
            return
        after = call.query.get("starting_after", "-1")
        if after != "-1" and not (after.isascii() and after.isdigit()):
            raise refusals.wrong_value("starting_after", "expected the sequence_number of an event")
        tenant, start = self.tenant(call), int(after[:9]) + 1
        await self.stored(call)
        run = self._background.runs.get(call.path_id)
        if run is not None and run.keeps_events:
            events = run.follow(start)
        else:
            await self._kept(call, tenant)
            events = self._kept_events(call, tenant, start)
        with self._background.following(tenant):
            await send_events(call, events)

    async def delete(self, call: HttpCall) -> None:
        """Erase the response; one that is being generated is cancelled. Raises NotFound."""
        await super().delete(call)
        with contextlib.suppress(NotFound):
            await self.store.delete("events", call.path_id, self.tenant(call))

    async def cancel(self, call: HttpCall) -> None:
        """Stop a response in the background; one that has ended stays as it is. Raises ApiError."""

        def change(stored: StoredObject) -> StoredObject:
            response = msgspec.json.decode(stored.record)
            if not response["background"]:
                raise InvalidRequest("Only responses in the background can be cancelled; this one is not.")
            if not stored.leased_until_s:
                return stored
            return StoredObject(encode({**response, "status": "cancelled"}))

        changed = await self.store.change(self.kind, call.path_id, self.tenant(call), change)
        self._background.cancel(call.path_id)
        await call.respond(changed.record)

    async def list_items(self, call: HttpCall) -> None:
        """A page of the input: `limit`, `order` (default: desc), `after` an item's id. Raises ApiError."""
        query = PageQuery.read(call.query)
        found, has_more = await self.store.page_of_items(self.kind, call.path_id, self.tenant(call), query)
        await respond_page(call, [msgspec.json.decode(item.text) for item in found], has_more=has_more)

    async def _kept_events(self, call: HttpCall, tenant: str, start: int) -> AsyncIterator[bytes]:
        """The events of a response that has ended, or that another worker generates. Raises ApiError."""
        while (kept := await self._kept(call, tenant)).leased_until_s:
            await asyncio.sleep(POLL_S)
        yield b"\n\n".join(kept.record.split(b"\n\n")[start:])

    async def _kept(self, call: HttpCall, tenant: str) -> StoredObject:
        try:
            kept = await self.store.get("events", call.path_id, tenant)
        except NotFound:
            what = "only responses with 'background' and 'stream' can be streamed again"
            raise refusals.unsupported("stream", what) from None
        if 0.0 < kept.leased_until_s < self.store.now_s():
            raise Unavailable(_LOST["message"])
        return kept
