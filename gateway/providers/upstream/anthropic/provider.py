"""A provider that is Anthropic's Messages API."""

from __future__ import annotations

from gateway.answer import Delta, Embedded, Generated
from gateway.errors import InvalidRequest
from gateway.providers.base import ModelCall
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.answer_stream import AnswerStream
from gateway.providers.upstream.anthropic.reader import MessageReader
from gateway.providers.upstream.anthropic.request import encoded, messages_body
from gateway.providers.upstream.client import UpstreamClient, is_event_stream, media_type
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from policies.document import UpstreamModel

API_VERSION = "2023-06-01"
"""The last one with temperature, top_p and top_k."""


class AnthropicProvider:
    """Calls one upstream model."""

    def __init__(
        self, name: str, upstream: UpstreamModel, api_key: str | None = None, proxy: str = ""
    ) -> None:
        """Create inside a running event loop. `name` is the model's name here, `proxy` a URL.

        Raises SettingsError when the CA bundle cannot be read.
        """
        headers = {"anthropic-version": API_VERSION}
        if api_key:
            headers["x-api-key"] = api_key
        self._client = UpstreamClient(name, upstream, headers, api_key, proxy)
        self._remote_name = upstream.model or name

    async def start(self) -> None:
        """Nothing to start: connections are opened on demand."""

    async def close(self) -> None:
        """Close the idle connections."""
        await self._client.close()

    async def chat(self, call: ModelCall[ChatRequest]) -> Generated:
        """Answer a chat. Raises ApiError."""
        client, request = self._client, call.request
        limit = client.upstream.default_max_tokens
        body, ignored = messages_body(request, call.body, self._remote_name, limit)
        is_stream = bool(request.stream)
        reply, left_s = await client.post(
            "/messages", encoded(body), call.request_id, call.trace_headers, is_stream=is_stream
        )
        reader = MessageReader(client.name, client.redactor)
        stream = None
        try:
            if not is_stream:
                reader.read_whole(await client.read_all(reply))
            elif not is_event_stream(reply):
                if media_type(reply) == "application/json":  # perhaps an error with status 200
                    reader.read(await client.read_all(reply, upstream_errors.MAX_ERROR_BYTES))
                raise reader.invalid("a stream was requested, and it is not one")
            else:
                stream = AnswerStream(reply, reader, client.upstream.idle_timeout_s)
                await stream.begin(left_s)
        except BaseException:
            reply.close()
            raise
        return Generated(
            MessageDeltas(reader, stream),
            reader.usage,
            shows_reasoning=request.reasoning_effort not in (None, "none")
            and request.include_reasoning is not False,
            offers_tools=bool(request.tools),
            ignored_fields=ignored,
        )

    async def complete(self, call: ModelCall[CompletionRequest]) -> Generated:
        """Refuse: the API has chats only."""
        raise self._refusal("/v1/completions", call.request.model)

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Embedded:
        """Refuse: the API has chats only."""
        raise self._refusal("/v1/embeddings", call.request.model)

    def _refusal(self, path: str, model: str) -> InvalidRequest:
        return InvalidRequest(
            f"The model {model[:128]!r} is an upstream of Anthropic's API, which has chats only: it does not "
            f"answer {path}.",
            param="model",
            code="model_not_supported",
        )


class MessageDeltas:
    """The deltas of one answer. A class: a generator that never started does not close its source."""

    def __init__(self, reader: MessageReader, stream: AnswerStream | None) -> None:
        """`stream`: None for an answer that the reader has read as a whole."""
        self._reader = reader
        self._stream = stream

    def __aiter__(self) -> MessageDeltas:
        """Return the iterator itself."""
        return self

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
