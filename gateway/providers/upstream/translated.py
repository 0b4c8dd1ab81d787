"""A provider whose API is not OpenAI's: a chat becomes its request, its answer deltas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.answer import Delta, Embedded, Generated
from gateway.errors import InvalidRequest
from gateway.providers.base import ModelCall
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.answer_stream import AnswerStream, EventSplitter
from gateway.providers.upstream.chat_reader import ChatReader
from gateway.providers.upstream.client import UpstreamClient, media_type
from gateway.providers.upstream.parts import ignored_fields
from gateway.providers.upstream.sse import EventReader
from gateway.providers.upstream.transport import Reply
from gateway.requests import refusals
from gateway.requests.reasoning import shows_reasoning
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from policies.upstream import UpstreamModel


class TranslatedChat(NamedTuple):
    """A chat in the upstream's API."""

    path: str
    body: Mapping[str, Any]
    ignored_fields: list[str]


class TranslatingProvider(ABC):
    """Calls one upstream model."""

    api_name: str
    """Whose API it is, for errors."""
    stream_media_type = "text/event-stream"

    def __init__(
        self, name: str, upstream: UpstreamModel, api_key: str | None = None, proxy: str = ""
    ) -> None:
        """Create inside a running event loop. `name` is the model's name here, `proxy` a URL.

        Raises SettingsError when the CA bundle cannot be read.
        """
        self.upstream = upstream
        self.remote_name = upstream.model or name
        self.client = UpstreamClient(name, upstream, self.headers(api_key), api_key, proxy)

    @abstractmethod
    def headers(self, api_key: str | None) -> dict[str, str]:
        """The headers of every request."""

    @abstractmethod
    def translate(self, request: ChatRequest, body: Mapping[str, Any]) -> TranslatedChat:
        """The upstream's request. Raises InvalidRequest, naming the field, for what the API cannot do."""

    @abstractmethod
    def reader(self, request: ChatRequest) -> ChatReader:
        """For one answer."""

    async def signed_headers(self, path: str, body: bytes) -> Mapping[str, str]:
        """Headers of one request: what authenticates it, where `headers` do not. Raises UpstreamFailed."""
        return {}

    def events(self) -> EventSplitter:
        """A splitter of one stream."""
        return EventReader()

    async def start(self) -> None:  # noqa: B027  not abstract: most have nothing to start
        """Nothing to start: connections are opened on demand."""

    async def close(self) -> None:
        """Close the idle connections."""
        await self.client.close()

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        """Answer a chat. Raises ApiError."""
        request = call.request
        ignored = ignored_fields(request.messages)
        chat = self.translate(request, call.body)
        is_stream = bool(request.stream)
        body = _encoded(chat.body)
        headers = dict(await self.signed_headers(chat.path, body))
        if is_stream:
            headers["accept"] = self.stream_media_type
        reader = self.reader(request)
        reader.tally.request = request
        reply = stream = None
        try:
            reply, left_s = await self.client.post(
                chat.path, body, call.request_id, call.trace_headers, is_stream=is_stream, headers=headers
            )
            if is_stream:
                stream = await self._begin(reply, reader, left_s)
            else:
                reader.take_whole(await self.client.read_all(reply))
        except BaseException as error:
            call.lost.extend(reader.tally.lost(error, has_begun=reply is not None))
            if reply is not None:
                reply.close()
            raise
        return Generated(
            TranslatedDeltas(reader, stream),
            reader.usage,
            shows_reasoning=shows_reasoning(request),
            offers_tools=bool(request.tools),
            ignored_fields=[*chat.ignored_fields, *ignored],
        )

    async def ask(self, path: str, body: Mapping[str, Any], call: ModelCall[ChatRequest]) -> bytes:
        """The body of an answer that is not streamed, to another request about a chat. Raises ApiError."""
        raw = _encoded(body)
        headers = await self.signed_headers(path, raw)
        reply, _ = await self.client.post(
            path, raw, call.request_id, call.trace_headers, is_stream=False, headers=headers
        )
        try:
            return await self.client.read_all(reply)
        except BaseException:
            reply.close()
            raise

    async def _begin(self, reply: Reply, reader: ChatReader, first_token_timeout_s: float) -> AnswerStream:
        found = media_type(reply)
        if found != self.stream_media_type:
            if found == "application/json":  # perhaps an error with status 200
                reader.take(await self.client.read_all(reply, upstream_errors.MAX_ERROR_BYTES))
            raise reader.invalid("a stream was requested, and it is not one")
        stream = AnswerStream(reply, reader, self.upstream.idle_timeout_s, self.events())
        await stream.begin(first_token_timeout_s)
        return stream

    async def complete(self, call: ModelCall[CompletionRequest]) -> Generated:
        """Refuse: the API has chats only."""
        raise self._refusal("/v1/completions", call.request.model)

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Embedded:
        """Refuse: the API has chats only."""
        raise self._refusal("/v1/embeddings", call.request.model)

    def _refusal(self, path: str, model: str) -> InvalidRequest:
        return InvalidRequest(
            f"The model {model[:128]!r} is an upstream of {self.api_name}, of which only chats are "
            f"translated: it does not answer {path}.",
            param="model",
            code="model_not_supported",
        )


class TranslatedDeltas(AsyncIterator[Delta]):
    """The deltas of one answer. A class: a generator that never started does not close its source."""

    def __init__(self, reader: ChatReader, stream: AnswerStream | None) -> None:
        """`stream`: None for an answer that the reader has read as a whole."""
        self._reader = reader
        self._stream = stream

    async def __anext__(self) -> Delta:
        """The next delta. Raises ApiError."""
        while not self._reader.deltas:
            if self._stream is None:
                raise StopAsyncIteration
            await anext(self._stream)  # raises StopAsyncIteration at its end
        return self._reader.deltas.pop(0)

    async def aclose(self) -> None:
        """Stop: close the upstream's stream. Idempotent."""
        self._reader.deltas.clear()
        if self._stream is not None:
            await self._stream.aclose()


def _encoded(body: Mapping[str, Any]) -> bytes:
    """The body as JSON. Raises InvalidRequest for text that JSON cannot carry."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        raise refusals.unsupported("messages", "a text holds a lone surrogate") from None
