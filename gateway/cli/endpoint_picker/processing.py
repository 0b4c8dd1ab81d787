"""Envoy's external processing of one HTTP request: its destination, and everything else as it was."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.cli.endpoint_picker.messages import OVERWRITE, BodyMode, Message, ProcessingResponse
from gateway.cli.endpoint_picker.picker import Asked, Refusal

DESTINATION = "x-gateway-destination-endpoint"
SUBSET_NAMESPACE, SUBSET = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
METADATA_NAMESPACE = "envoy.lb"
CHUNK_BYTES = 62_000
"""The most of a body that goes back in one message: Envoy takes 64 KB."""

Pick = Callable[[Asked], Awaitable[str]]


class Processing:
    """Answers the messages of one stream."""

    def __init__(self, pick: Pick, max_body_bytes: int) -> None:
        self._pick = pick
        self._max_body_bytes = max_body_bytes
        self._headers: dict[str, str] = {}
        self._subset: list[str] | None = None
        self._body = bytearray()
        self._is_picked = False
        # What the reference picker needs, and a proxy that does not say its mode has.
        self._request_mode = self._response_mode = int(BodyMode.FULL_DUPLEX_STREAMED)

    async def answers(self, messages: AsyncIterable[Message]) -> AsyncIterator[Message]:
        """The responses to `messages`; after a refusal there are no more."""
        async for message in messages:
            try:
                for response in await self._answer(message):
                    yield response
            except Refusal as refusal:
                yield _refused(refusal)
                return

    async def _answer(self, message: Message) -> list[Message]:
        if message.HasField("request_headers"):
            return await self._begin(message)
        if message.HasField("request_body"):
            return await self._continue(message.request_body)
        if message.HasField("request_trailers"):
            begun = (
                [] if self._is_picked else [*await self._destination("request_headers"), *self._rest(False)]
            )
            return [*begun, ProcessingResponse(request_trailers={})]
        if message.HasField("response_headers"):
            return [ProcessingResponse(response_headers={})]
        if message.HasField("response_body"):
            is_streamed = self._response_mode == BodyMode.FULL_DUPLEX_STREAMED
            body = message.response_body
            chunks = _chunks(body.body, body.end_of_stream) if is_streamed else [{}]
            return [ProcessingResponse(response_body={"response": chunk}) for chunk in chunks]
        return [ProcessingResponse(response_trailers={})] if message.HasField("response_trailers") else []

    async def _begin(self, message: Message) -> list[Message]:
        for each in message.request_headers.headers.headers:
            self._headers[each.key.lower()] = each.value or each.raw_value.decode("utf-8", "replace")
        if message.HasField("protocol_config"):
            self._request_mode = message.protocol_config.request_body_mode
            self._response_mode = message.protocol_config.response_body_mode
        for entry in message.metadata_context.filter_metadata:
            if entry.key == SUBSET_NAMESPACE and SUBSET in entry.value:
                hint = entry.value[SUBSET]
                self._subset = hint.split(",") if isinstance(hint, str) else [str(each) for each in hint]
        is_body_known = message.request_headers.end_of_stream
        if is_body_known or self._request_mode in (BodyMode.NONE, BodyMode.STREAMED):
            return await self._destination("request_headers")
        if self._request_mode == BodyMode.FULL_DUPLEX_STREAMED:
            return []
        return [ProcessingResponse(request_headers={})]

    async def _continue(self, body: Message) -> list[Message]:
        if self._is_picked:  # by the headers
            return [ProcessingResponse(request_body={})]
        self._body += body.body
        if len(self._body) > self._max_body_bytes:
            raise Refusal(413, f"The body is longer than {self._max_body_bytes} bytes.")
        if self._request_mode != BodyMode.FULL_DUPLEX_STREAMED:
            return await self._destination("request_body")
        if not body.end_of_stream:
            return []
        return [*await self._destination("request_headers"), *self._rest(True)]

    def _rest(self, is_last: bool) -> Iterator[Message]:
        """The request's body, which the proxy has given away."""
        for chunk in _chunks(bytes(self._body), is_last):
            yield ProcessingResponse(request_body={"response": chunk})

    async def _destination(self, phase: str) -> list[Message]:
        """The answer to `phase` that says where the request goes."""
        headers = self._headers
        key = headers.get("x-api-key", "")
        authorization = headers.get("authorization") or (f"Bearer {key}" if key else "")
        path = headers.get(":path", "")
        endpoint = await self._pick(Asked(path, authorization, bytes(self._body), self._subset))
        self._is_picked = True
        header = {"header": {"key": DESTINATION, "raw_value": endpoint.encode()}, "append_action": OVERWRITE}
        common = {"clear_route_cache": True, "header_mutation": {"set_headers": [header]}}
        response = ProcessingResponse(**{phase: {"response": common}})
        response.dynamic_metadata.update({METADATA_NAMESPACE: {DESTINATION: endpoint}})
        return [response]


def _chunks(body: bytes, is_last: bool) -> Iterator[dict[str, Any]]:
    """A body for the proxy to send on, in pieces that it takes."""
    for start in range(0, max(len(body), 1), CHUNK_BYTES):
        end = start + CHUNK_BYTES
        piece = {"body": body[start:end], "end_of_stream": is_last and end >= len(body)}
        yield {"body_mutation": {"streamed_response": piece}}


def _refused(refusal: Refusal) -> Message:
    error = {"message": str(refusal), "type": HTTPStatus(refusal.status).phrase.lower().replace(" ", "_")}
    content_type = {"header": {"key": "content-type", "raw_value": b"application/json"}}
    return ProcessingResponse(
        immediate_response={
            "status": {"code": refusal.status},
            "headers": {"set_headers": [content_type]},
            "body": msgspec.json.encode({"error": error}),
        }
    )
