"""POST /v1/responses and /v1/responses/input_tokens, on top of chat."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec

from gateway.answer import Generated
from gateway.auth import Principal
from gateway.errors import NotFound
from gateway.exchange.exchange import Exchange
from gateway.exchange.shape import encode
from gateway.exchange.translation import Translation
from gateway.openai.responses.input_items import ItemReference, chat_messages, read_items, response_of
from gateway.openai.responses.request import CHAT_NAMES, ReadRequest, read_request
from gateway.openai.responses.shape import ResponseShape, StreamErrors
from gateway.requests import refusals
from gateway.requests.parse import typed_at
from gateway.stored.background import RESPONSE_ID
from gateway.stored.conversations import check_ids
from gateway.stored.object_rows import Named
from gateway.stored.object_store import ObjectStore, StoredObject
from gateway.web.error_format import RenamedErrors
from gateway.web.http_call import HttpCall

MAX_REFERENCED = 100
"""Responses that the references of one request may be to."""
THREAD_FROM_ITEMS = 100
"""From that number of items on they are measured in a thread."""


class ResponsesTranslation(Translation):
    """One call of /v1/responses."""

    _read: ReadRequest  # set by `to_chat`
    _shape: ResponseShape  # set by `shape`

    def __init__(self, call: HttpCall, store: ObjectStore, *, drops_hosted: bool = False) -> None:
        """`drops_hosted`: see `read_request`."""
        self._drops_hosted = drops_hosted
        self._call = call
        self._store = store
        self._response_id: str = call.scope.get(RESPONSE_ID, "")  # of one in the background
        self._tenant = ""
        self._earlier: list[dict[str, Any]] = []
        self._items: list[dict[str, Any]] = []
        self._truncates = False

    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """The chat that answers the request. Raises NotFound for an unknown `previous_response_id`."""
        read = read_request(body, drops_hosted=self._drops_hosted)
        if read.request.background and not self._response_id:
            raise refusals.unsupported("background", "a batch's requests are in the background already")
        if read.is_stored and not self._store.is_enabled:
            read = replace(read, request=msgspec.structs.replace(read.request, store=False))
        self._read, self._tenant = read, principal.tenant
        self._truncates = read.request.truncation == "auto"
        self._earlier, self._items, chat = await chat_of(read, self._store, principal)
        self.ignored_fields, self.names = read.ignored_fields, CHAT_NAMES
        self._call.error_format = RenamedErrors(self._call.error_format, CHAT_NAMES)
        return chat

    def truncates(self) -> bool:
        """Whether the request's `truncation` is "auto". Known after `to_chat`."""
        return self._truncates

    def shape(self, exchange: Exchange, answer: Generated) -> ResponseShape:
        """Encodes the answer as a response."""
        self._shape = ResponseShape(
            self._read,
            exchange.chosen_model.name,
            shows_reasoning=answer.shows_reasoning,
            response_id=self._response_id,
        )
        self._call.error_format = RenamedErrors(StreamErrors(self._shape), CHAT_NAMES)
        return self._shape

    async def finish(self) -> None:
        """Store the response, unless the request or the policies say otherwise. Raises Unavailable."""
        keep = named_by(self._read)
        if self._response_id:
            await self._store.change("response", self._response_id, self._tenant, self._complete)
        elif self._read.is_stored:
            stored, items = StoredObject(encode(self._shape.response)), [*self._earlier, *self._items]
            await self._store.put("response", self._shape.response_id, self._tenant, stored, items, keep)
        if self._read.conversation_id is not None:
            items = [*self._items, *self._shape.response["output"]]
            keep = [("response", self._response_id or self._shape.response_id)]
            # Its bounds were asked before the model was; an answer may pass them.
            await self._store.append(
                "conversation", self._read.conversation_id, self._tenant, items, keep, is_bounded=False
            )

    def _complete(self, stored: StoredObject) -> StoredObject:
        """Ends its lease, unless it has been cancelled."""
        return (
            replace(stored, record=encode(self._shape.response), leased_until_s=0.0)
            if stored.leased_until_s
            else stored
        )


class ResponsesCounting:
    """One call of /v1/responses/input_tokens. Implements `gateway.endpoints.spec.Counting`."""

    def __init__(self, call: HttpCall, store: ObjectStore, *, drops_hosted: bool = False) -> None:
        """`drops_hosted`: see `read_request`."""
        self._drops_hosted = drops_hosted
        self._call = call
        self._store = store

    async def to_chat(self, body: dict[str, Any], principal: Principal) -> dict[str, Any]:
        """The chat whose tokens are counted. Raises NotFound for an unknown `previous_response_id`."""
        read = read_request(body, drops_hosted=self._drops_hosted)
        *_, chat = await chat_of(read, self._store, principal)
        self._call.error_format = RenamedErrors(self._call.error_format, CHAT_NAMES)
        return chat

    def counted(self, num_tokens: int) -> dict[str, Any]:
        """The body that tells the number of tokens."""
        return {"object": "response.input_tokens", "input_tokens": num_tokens}


def named_by(read: ReadRequest) -> list[Named]:
    """The stored objects that a request names: they do not make room for its response."""
    names: list[Named] = []
    if read.request.previous_response_id is not None:
        names.append(("response", read.request.previous_response_id))
    if read.conversation_id is not None:
        names.append(("conversation", read.conversation_id))
    return names


async def chat_of(
    read: ReadRequest, store: ObjectStore, principal: Principal
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """The items of earlier responses or the conversation, those of the request, and the body of the chat.

    Raises ApiError. `instructions` are no item: the next response does not inherit them.
    """
    given = [] if read.request.input is None else read.request.input
    if isinstance(given, list):
        given = await _referenced(given, store, principal)
    items = read_items(given)
    earlier: list[dict[str, Any]] = []
    param = "input"
    if read.request.previous_response_id is not None:
        param = "previous_response_id"
        previous, earlier = await store.with_items(
            "response", read.request.previous_response_id, principal.tenant
        )
        if previous.leased_until_s > store.now_s():  # else it is complete, or its process has ended
            why = "that response is not complete: retrieve it until it is"
            raise refusals.wrong_value("previous_response_id", why)
        earlier += msgspec.json.decode(previous.record)["output"]
    elif read.conversation_id is not None:
        param = "conversation"
        _, earlier = await store.with_items("conversation", read.conversation_id, principal.tenant)
        check_ids(earlier, items, "input")
    if (read.is_stored and store.is_enabled) or read.conversation_id is not None:
        await _check_bounds(store, [*earlier, *items], param)
    chat = read.with_tools_of([*earlier, *items])
    messages = chat_messages([*earlier, *items], read.tools)
    if read.request.instructions:
        messages.insert(0, {"role": "system", "content": read.request.instructions})
    return earlier, items, {**chat, "messages": messages}


async def _check_bounds(store: ObjectStore, items: list[dict[str, Any]], param: str) -> None:
    """Raise InvalidRequest where a stored response or conversation would be too large."""
    is_larger = len(items) > store.policy.max_object_items
    if not is_larger and len(items) > THREAD_FROM_ITEMS:
        is_larger = await asyncio.to_thread(_are_larger, items, store.max_object_bytes)
    elif not is_larger:
        is_larger = _are_larger(items, store.max_object_bytes)
    if is_larger:
        raise store.too_large(param)


def _are_larger(items: list[dict[str, Any]], max_bytes: int) -> bool:
    num_bytes = 0
    for item in items:  # one by one: the interpreter's lock is free in between
        try:
            num_bytes += len(encode(item))
        except UnicodeEncodeError:  # refused later, by name
            continue
        if num_bytes > max_bytes:
            return True
    return False


async def _referenced(given: list[Any], store: ObjectStore, principal: Principal) -> list[Any]:
    """Items; in place of references those of earlier responses that they refer to. Raises InvalidRequest."""
    found: list[Any] = []
    outputs: dict[str, dict[str, Any]] = {}  # by response, then by item
    num_bytes = 0
    for place, item in enumerate(given):
        where = f"input[{place}]"
        if not isinstance(item, dict) or item.get("type") != "item_reference":
            found.append(item)
            continue
        item_id = typed_at(item, ItemReference, where).id
        response_id = response_of(item_id)
        if response_id not in outputs:
            if len(outputs) == MAX_REFERENCED:
                what = f"references to items of more than {MAX_REFERENCED} responses: send the items"
                raise refusals.wrong_value(f"{where}.id", what)
            outputs[response_id] = await _outputs(store, response_id, principal.tenant)
        if item_id not in outputs[response_id]:
            raise refusals.wrong_value(f"{where}.id", "no stored response has an item with this id")
        referred, size = outputs[response_id][item_id]
        num_bytes += size
        if num_bytes > store.max_object_bytes:
            raise store.too_large(f"{where}.id")
        found.append(referred)
    return found


async def _outputs(store: ObjectStore, response_id: str, tenant: str) -> dict[str, Any]:
    """The items of a response's output with their sizes, by id; none without such a response."""
    try:
        response = await store.get("response", response_id, tenant)
    except NotFound:
        return {}
    return {item["id"]: (item, len(encode(item))) for item in msgspec.json.decode(response.record)["output"]}
