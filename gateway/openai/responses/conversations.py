"""/v1/conversations: items that responses read and add to."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequest, NotFound
from gateway.openai.object_store import ObjectStore, StoredObject
from gateway.openai.objects_endpoint import ObjectsEndpoint, respond_page
from gateway.openai.responses.input_items import read_items
from gateway.openai.shape import encode
from gateway.requests import refusals
from gateway.requests.pages import PageQuery, listing
from gateway.requests.parse import decode_body, typed
from gateway.requests.types import Metadata
from gateway.web.http_call import HttpCall

MAX_ITEMS = 20
"""Of one request that adds items, as at OpenAI."""


class _NewConversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Any], Meta(max_length=MAX_ITEMS)] | None = None
    metadata: Metadata | None = None


class _NewItems(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: Annotated[list[Any], Meta(min_length=1, max_length=MAX_ITEMS)]


class ConversationsEndpoint(ObjectsEndpoint):
    """What a tenant may do with its conversations."""

    kind = "conversation"
    deleted = "conversation.deleted"

    def __init__(self, *parts: Any, max_body_bytes: int) -> None:  # noqa: ANN401
        super().__init__(*parts)
        self._max_body_bytes = max_body_bytes

    async def create(self, call: HttpCall) -> None:
        """A new conversation, perhaps with items. Raises ApiError."""
        tenant = self.tenant(call)
        if not self.store.is_enabled:
            raise InvalidRequest("The policies store nothing: send all items with each response.")
        body = typed(await self._body(call), _NewConversation)
        items = _checked(body.items or [])
        conversation_id = "conv_" + secrets.token_hex(16)
        record = {
            "id": conversation_id,
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": body.metadata or {},
        }
        stored = StoredObject(encode(record), items)
        await self.store.put(self.kind, conversation_id, tenant, stored)
        await call.respond(stored.record)

    async def add_items(self, call: HttpCall) -> None:
        """Append items. Raises ApiError."""
        tenant = self.tenant(call)
        items = _checked(typed(await self._body(call), _NewItems).items)
        await append(self.store, call.path_id, tenant, items)
        await call.respond(encode(listing(items, has_more=False)))

    async def list_items(self, call: HttpCall) -> None:
        """A page: `limit`, `order` (default: desc), `after` an item's id. Raises ApiError."""
        query = PageQuery.read(call.query)
        await respond_page(call, query, (await self.stored(call)).items)

    async def show_item(self, call: HttpCall) -> None:
        """One item. Raises NotFound."""
        await call.respond(encode(_item(await self.stored(call), call)))

    async def delete_item(self, call: HttpCall) -> None:
        """Erase one item; shows the conversation. Raises NotFound."""

        def change(stored: StoredObject) -> StoredObject:
            found = _item(stored, call)
            return StoredObject(stored.record, [item for item in stored.items if item is not found])

        changed = await self.store.change(self.kind, call.path_id, self.tenant(call), change)
        await call.respond(changed.record)

    async def _body(self, call: HttpCall) -> dict[str, Any]:
        return decode_body(await call.read_json_bytes(self._max_body_bytes))


async def append(store: ObjectStore, conversation_id: str, tenant: str, items: list[dict[str, Any]]) -> None:
    """Add items to a conversation. Raises NotFound, or InvalidRequest for an id that it has already."""

    def change(stored: StoredObject) -> StoredObject:
        check_ids(stored.items, items, "items")
        return StoredObject(stored.record, [*stored.items, *items])

    await store.change("conversation", conversation_id, tenant, change)


def check_ids(stored: list[dict[str, Any]], new: list[dict[str, Any]], where: str) -> None:
    """Raise InvalidRequest when an item of the field `where` has the id of one in the conversation."""
    if {item["id"] for item in stored} & {item["id"] for item in new}:
        raise refusals.wrong_value(where, "the conversation has an item with the id of one of these")


def _checked(given: list[Any]) -> list[dict[str, Any]]:
    items = read_items(given, "items")
    try:
        encode(items)
    except UnicodeEncodeError:
        raise InvalidRequest("The body holds a text that is not Unicode: a lone surrogate.") from None
    return items


def _item(stored: StoredObject, call: HttpCall) -> dict[str, Any]:
    wanted = call.scope["path_params"]["item_id"]
    for item in stored.items:
        if item["id"] == wanted:
            return item
    raise NotFound("The conversation has no item with this id.", param="item_id", code="item_not_found")
