"""A provider that is an OpenAI-compatible HTTP API: chat, completions and embeddings, streamed or whole."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from gateway.answer import Relayed
from gateway.errors import ApiError
from gateway.providers.base import ModelCall, RequestT
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.answer_reader import AnswerReader
from gateway.providers.upstream.answer_stream import AnswerStream
from gateway.providers.upstream.client import UpstreamClient, is_event_stream, media_type
from gateway.providers.upstream.transport import Reply
from gateway.requests.custom_tools import as_custom, as_functions, custom_names
from gateway.requests.types import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    GenerationRequest,
    ModelRequest,
)
from policies.upstream import UpstreamModel

_WITH_USAGE = {"include_usage": True}
_OPTIONS = re.compile("stream_options|include_usage")


class OpenAIProvider:
    """Calls one upstream model. The request's body is forwarded unchanged, except as the policies say."""

    def __init__(
        self, name: str, upstream: UpstreamModel, api_key: str | None = None, proxy: str = ""
    ) -> None:
        """Create inside a running event loop. `name` is the model's name here, `proxy` a URL.

        Raises SettingsError when the CA bundle cannot be read.
        """
        self._remote_name = upstream.model or name
        self._client = UpstreamClient(name, upstream, key_headers(upstream, api_key), api_key, proxy)

    async def start(self) -> None:
        """Nothing to start: connections are opened on demand."""

    async def close(self) -> None:
        """Close the idle connections."""
        await self._client.close()

    def chat(self, call: ModelCall[ChatRequest]) -> Coroutine[Any, Any, Relayed]:
        """Answer /v1/chat/completions. Raises ApiError."""
        return self.ask("/chat/completions", call)

    def complete(self, call: ModelCall[CompletionRequest]) -> Coroutine[Any, Any, Relayed]:
        """Answer /v1/completions. Raises ApiError."""
        return self.ask("/completions", call)

    def embed(self, call: ModelCall[EmbeddingRequest]) -> Coroutine[Any, Any, Relayed]:
        """Answer /v1/embeddings. Raises ApiError."""
        return self.ask("/embeddings", call)

    async def ask(self, path: str, call: ModelCall[RequestT]) -> Relayed:
        """Answer a path of the API below `base_url`. Raises ApiError."""
        client = self._client
        is_stream = call.body.get("stream") is True
        request = call.request
        fields: Mapping[str, Any] = call.body
        asks_usage = is_stream and isinstance(request, GenerationRequest) and not request.wants_usage
        if asks_usage:
            fields = {**fields, "stream_options": {**(fields.get("stream_options") or {}), **_WITH_USAGE}}
        if call.is_translated and isinstance(call.request, ChatRequest):
            fields = _with_tools(fields, call.request, has_custom=client.upstream.custom_tools)
        if dropped := client.upstream.drop_fields:
            fields = _without(fields, dropped)
        if renames := client.upstream.rename_fields:
            fields = {renames.get(name, name): value for name, value in fields.items()}
        if (dropped := client.upstream.drop_message_fields) and isinstance(call.request, ChatRequest):
            messages = [_without(message, dropped) for message in fields["messages"]]
            fields = {**fields, "messages": messages}
        body = msgspec.json.encode({**fields, "model": self._remote_name})
        answer = AnswerReader(client.name, client.redactor, request, *_expected(request))
        reply = None
        try:
            reply, left_s = await client.post(
                path, body, call.request_id, call.trace_headers, is_stream=is_stream
            )
            if not is_stream:
                whole = await client.read_all(reply)
                answer.read_whole(whole)
                return answer.relayed(whole)
            return await self._stream(reply, answer, left_s)
        except BaseException as error:
            call.lost.extend(answer.tally.lost(error, has_begun=reply is not None))
            if reply is not None:
                reply.close()
            elif asks_usage and isinstance(error, ApiError):
                _explain(error)
            raise

    async def _stream(self, reply: Reply, answer: AnswerReader, first_token_timeout_s: float) -> Relayed:
        if not is_event_stream(reply):
            if media_type(reply) == "application/json":  # perhaps an error with status 200, to be passed on
                answer.take(await self._client.read_all(reply, upstream_errors.MAX_ERROR_BYTES))
            raise answer.invalid("a stream was requested, and it is not one")
        stream = AnswerStream(reply, answer, self._client.upstream.idle_timeout_s)
        await stream.begin(first_token_timeout_s)
        return answer.relayed(stream, "text/event-stream")


def _explain(error: ApiError) -> None:
    """Name the remedy for an upstream that refuses the field which the client has not sent."""
    if error.status in (400, 422) and _OPTIONS.search(f"{error.message} {error.param}"):
        error.message += (
            " The gateway asks for the usage of every stream; if the upstream does not know that field, its "
            "operator must set `drop_fields: [stream_options]` in the model's `upstream`."
        )


def _with_tools(fields: Mapping[str, Any], request: ChatRequest, *, has_custom: bool) -> Mapping[str, Any]:
    """The fields of a chat with its custom tools, and calls of them, as the upstream takes them."""
    names = custom_names(request.tools)
    if not names:
        return fields
    if has_custom:
        return {**fields, "messages": as_custom(request.messages, names)}
    return {**fields, **as_functions(request.tools or [], request.tool_choice)}


def _without(fields: Mapping[str, Any], dropped: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in dropped}


def key_headers(upstream: UpstreamModel, api_key: str | None) -> dict[str, str]:
    """The headers that authenticate with a key."""
    if not api_key:
        return {}
    if upstream.api_key_header == "authorization":
        return {"authorization": f"Bearer {api_key}"}
    return {upstream.api_key_header: api_key}


def _expected(request: ModelRequest) -> tuple[int, int]:
    """How many choices and how many vectors the answer has; 0: not known."""
    num_prompts = _num_prompts(request.inputs) if request.INPUT_FIELD else 0
    if isinstance(request, GenerationRequest):
        return request.num_choices * (num_prompts or 1), 0
    return 0, num_prompts


def _num_prompts(value: str | list[str | int | list[int]]) -> int:
    """Texts, or lists of token ids; a list of numbers is one prompt."""
    return 1 if isinstance(value, str) or (value and isinstance(value[0], int)) else len(value)
