"""A provider that is an OpenAI-compatible HTTP API: chat, completions and embeddings, streamed or whole."""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from gateway.answer import Relayed
from gateway.providers.base import ModelCall, RequestT
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.answer_reader import AnswerReader, AnswerStream
from gateway.providers.upstream.open_transport import open_transport
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.transport import NetworkOptions, Reply
from gateway.requests.types import ChatRequest, CompletionRequest, EmbeddingRequest
from policies.document import UpstreamModel

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_TRACE_HEADERS = ("traceparent", "tracestate")


class OpenAIProvider:
    """Calls one upstream model. The request's body is forwarded unchanged, except for `model`.

    No header of the caller is forwarded; the upstream gets its own API key, the trace and the request id.
    """

    def __init__(
        self, name: str, upstream: UpstreamModel, api_key: str | None = None, proxy: str = ""
    ) -> None:
        """Create inside a running event loop. `name` is the model's name here, `proxy` a URL.

        Raises SettingsError when the CA bundle cannot be read.
        """
        self._name = name
        self._remote_name = upstream.model or name
        self._upstream = upstream
        login = urlsplit(proxy)
        credentials = f"{login.username}:{login.password}" if login.password else ""
        self._redactor = Redactor(api_key or "", login.password or "", credentials)
        headers = {"content-type": "application/json", "user-agent": "penstock"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._transport = open_transport(
            upstream.base_url,
            NetworkOptions(
                proxy=proxy,
                ca_bundle=upstream.ca_bundle or "",
                http2=upstream.http2,
                unix_socket=upstream.unix_socket or "",
            ),
            connect_timeout_s=upstream.connect_timeout_s,
            headers=headers,
        )

    async def start(self) -> None:
        """Nothing to start: connections are opened on demand."""

    async def close(self) -> None:
        """Close the idle connections."""
        await self._transport.close()

    async def chat(self, call: ModelCall[ChatRequest]) -> Relayed:
        """Answer /v1/chat/completions. Raises ApiError."""
        return await self._post("/chat/completions", call)

    async def complete(self, call: ModelCall[CompletionRequest]) -> Relayed:
        """Answer /v1/completions. Raises ApiError."""
        return await self._post("/completions", call)

    async def embed(self, call: ModelCall[EmbeddingRequest]) -> Relayed:
        """Answer /v1/embeddings. Raises ApiError."""
        return await self._post("/embeddings", call)

    async def _post(self, path: str, call: ModelCall[RequestT]) -> Relayed:
        started_s = time.monotonic()
        is_stream = call.body.get("stream") is True
        answer = AnswerReader(self._name, self._redactor, *_expected(call.request))
        # A whole answer's headers arrive when it is complete: only the total limit can apply to them.
        limit_s = self._upstream.first_token_timeout_s if is_stream else self._upstream.total_timeout_s
        body = msgspec.json.encode({**call.body, "model": self._remote_name})
        headers = self._headers(call.request_id, call.trace_headers, is_stream)
        try:
            reply = await self._transport.post(path, headers, body, limit_s)
        except upstream_errors.TRANSPORT_ERRORS as error:
            raise answer.failed(error, "first token" if is_stream else "total") from error
        try:
            if reply.status != 200:
                await self._raise_status(reply)
            if not is_stream:
                return await self._whole(reply, answer)
            return await self._stream(reply, answer, limit_s - (time.monotonic() - started_s))
        except upstream_errors.TRANSPORT_ERRORS as error:
            reply.close()
            raise answer.failed(error, "idle") from error
        except BaseException:
            reply.close()
            raise

    async def _whole(self, reply: Reply, answer: AnswerReader) -> Relayed:
        body = await reply.read_all(self._upstream.idle_timeout_s, MAX_ANSWER_BYTES)
        answer.read_whole(body)
        return answer.relayed(body)

    async def _stream(self, reply: Reply, answer: AnswerReader, first_token_timeout_s: float) -> Relayed:
        kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            if kind == "application/json":  # perhaps an error with status 200, which can be passed on
                answer.read(
                    await reply.read_all(self._upstream.idle_timeout_s, upstream_errors.MAX_ERROR_BYTES)
                )
            raise answer.invalid("a stream was requested, and it is not one")
        stream = AnswerStream(reply, answer, self._upstream.idle_timeout_s)
        await stream.begin(first_token_timeout_s)
        return answer.relayed(stream, "text/event-stream")

    async def _raise_status(self, reply: Reply) -> None:
        body = await reply.read_all(self._upstream.idle_timeout_s, upstream_errors.MAX_ERROR_BYTES)
        raise upstream_errors.of_status(reply.status, reply.headers, body, self._name, self._redactor)

    def _headers(self, request_id: str, trace: Mapping[str, str], is_stream: bool) -> dict[str, str]:
        headers = {
            "accept": "text/event-stream" if is_stream else "application/json",
            "x-request-id": request_id,
        }
        headers.update((name, trace[name]) for name in _TRACE_HEADERS if trace.get(name))
        return headers


def _expected(request: ChatRequest | CompletionRequest | EmbeddingRequest) -> tuple[int, int]:
    """How many choices and how many vectors the answer has."""
    if isinstance(request, EmbeddingRequest):
        return 0, _num_prompts(request.input)
    num_prompts = _num_prompts(request.prompt) if isinstance(request, CompletionRequest) else 1
    return request.num_choices * num_prompts, 0


def _num_prompts(value: str | list[str | int | list[int]]) -> int:
    """Texts, or lists of token ids; a list of numbers is one prompt."""
    return 1 if isinstance(value, str) or (value and isinstance(value[0], int)) else len(value)
