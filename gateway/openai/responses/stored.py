"""GET and DELETE /v1/responses/{id}, its input items, and cancel."""

from __future__ import annotations

from typing import Any

from gateway.auth import KeyRing
from gateway.errors import InvalidRequest
from gateway.openai.responses.store import ResponseStore
from gateway.openai.shape import encode
from gateway.requests import refusals
from gateway.web.http_call import HttpCall

MAX_LIMIT = 100
DEFAULT_LIMIT = 20


class StoredResponsesEndpoint:
    """What a tenant may do with its stored responses."""

    def __init__(self, keys: KeyRing, store: ResponseStore) -> None:
        self._keys = keys
        self._store = store

    async def show(self, call: HttpCall) -> None:
        """The response, as it was answered. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        if call.query.get("stream", "false") != "false":
            raise refusals.unsupported("stream", "a stored response cannot be streamed again")
        await call.respond((await self._store.get(_id(call), tenant)).response)

    async def delete(self, call: HttpCall) -> None:
        """Erase the response. Raises NotFound."""
        tenant = self._keys.identify(call.authorization).tenant
        await self._store.delete(_id(call), tenant)
        await call.respond(encode({"id": _id(call), "object": "response", "deleted": True}))

    async def cancel(self, call: HttpCall) -> None:
        """Refuse: only responses that are generated in the background can be cancelled. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        await self._store.get(_id(call), tenant)
        raise InvalidRequest("Only responses in the background can be cancelled; this one is complete.")

    async def list_items(self, call: HttpCall) -> None:
        """A page of the input: `limit`, `order` (default: desc), `after` an item's id. Raises ApiError."""
        tenant = self._keys.identify(call.authorization).tenant
        stored = await self._store.get(_id(call), tenant)
        await call.respond(encode(_page(stored.items, call.query)))


def _id(call: HttpCall) -> str:
    found: str = call.scope["path_params"]["id"]
    return found


def _page(items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
    limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
        raise refusals.wrong_value("limit", f"expected 1 to {MAX_LIMIT}")
    if order not in ("asc", "desc"):
        raise refusals.wrong_value("order", "expected 'asc' or 'desc'", order)
    ordered = items if order == "asc" else items[::-1]
    start = 0
    if after := query.get("after"):
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise refusals.wrong_value("after", "it is the id of no input item of this response")
        start = ids.index(after) + 1
    page = ordered[start : start + int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": start + len(page) < len(ordered),
    }
