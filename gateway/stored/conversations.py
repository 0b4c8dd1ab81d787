"""/v1/conversations: items that responses read and add to."""

from __future__ import annotations

import secrets
import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.errors import InvalidRequest
from gateway.exchange.shape import encode
from gateway.openai.responses.input_items import read_items
from gateway.requests import refusals
from gateway.requests.pages import PageQuery, listing
from gateway.requests.parse import decode_body, typed
from gateway.requests.types import Metadata
from gateway.stored.object_store import StoredObject
from gateway.stored.objects_endpoint import ObjectsEndpoint, respond_page
from gateway.web.http_call import HttpCall

MAX_ITEMS = 20
"""Items of one request that adds some, as at OpenAI."""


class NewConversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/conversations."""

    items: Annotated[list[Any], Meta(max_length=MAX_ITEMS)] | None = None
    metadata: Metadata | None = None


class NewItems(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items that a conversation gets."""

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
        body = typed(await self._body(call), NewConversation)
        items = _checked(body.items or [])
        if len(encode(items)) > self.store.max_object_bytes:
            raise self.store.too_large("items")
        conversation_id = "conv_" + secrets.token_hex(16)
        record = {
            "id": conversation_id,
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": body.metadata or {},
        }
        stored = StoredObject(encode(record))
        await self.store.put(self.kind, conversation_id, tenant, stored, items)
        await call.respond(stored.record)

    async def add_items(self, call: HttpCall) -> None:
        """Append items. Raises ApiError."""
        tenant = self.tenant(call)
        items = _checked(typed(await self._body(call), NewItems).items)
        await self.store.append(self.kind, call.path_id, tenant, items)
        await call.respond(encode(listing(items, has_more=False)))

    async def list_items(self, call: HttpCall) -> None:
        """A page: `limit`, `order` (default: desc), `after` an item's id. Raises ApiError."""
        query = PageQuery.read(call.query)
        found, has_more = await self.store.page_of_items(self.kind, call.path_id, self.tenant(call), query)
        await respond_page(call, [msgspec.json.decode(item.text) for item in found], has_more=has_more)

    async def show_item(self, call: HttpCall) -> None:
        """One item. Raises NotFound."""
        tenant, item_id = self.tenant(call), call.scope["path_params"]["item_id"]
        await call.respond(await self.store.item(self.kind, call.path_id, tenant, item_id))

    async def delete_item(self, call: HttpCall) -> None:
        """Erase one item; shows the conversation. Raises NotFound."""
        tenant, item_id = self.tenant(call), call.scope["path_params"]["item_id"]
        await call.respond(await self.store.delete_item(self.kind, call.path_id, tenant, item_id))

    async def _body(self, call: HttpCall) -> dict[str, Any]:
        return decode_body(await call.read_json_bytes(self._max_body_bytes))


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
