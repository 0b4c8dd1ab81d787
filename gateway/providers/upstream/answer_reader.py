"""Reads usage, finish reasons and errors from an upstream's answer, decoding each piece once.

The typed decode also validates the JSON, so a truncated or garbled piece never passes as an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from gateway.answer import Relayed, Usage
from gateway.errors import ApiError
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.sse import EventReader
from gateway.providers.upstream.transport import Reply

DONE = b"[DONE]"
_LINGER_S = 0.05
"""Wait for the end of the response after [DONE]; if it comes later, the connection is not reused."""
_DONE_EVENT = b"data: [DONE]\n\n"


class _Details(msgspec.Struct):
    cached_tokens: int | None = 0
    reasoning_tokens: int | None = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    index: int = 0


class _Item(msgspec.Struct):
    """One vector: validated as JSON and skipped."""


class _Piece(msgspec.Struct):
    """A whole answer, or one chunk of a streamed one."""

    id: str | None = None
    usage: _Usage | None = None
    choices: list[_Choice] | None = None
    error: object = None
    data: list[_Item] | None = None  # of embeddings


_DECODER = msgspec.json.Decoder(_Piece)


class AnswerReader:
    """Follows one answer: fills `usage` and `finish_reasons`, and tells whether it is complete."""

    __slots__ = ("_model", "_open", "_secret", "answer_id", "finish_reasons", "is_done", "usage")

    def __init__(self, model: str, secret: str) -> None:
        """`secret` is the upstream's API key, which no message repeats."""
        self.usage = Usage()
        self.finish_reasons: list[str] = []
        self.answer_id = ""
        self.is_done = False  # [DONE] was received
        self._model = model
        self._secret = secret
        self._open: set[int] = set()  # choices without a finish_reason yet

    @property
    def is_complete(self) -> bool:
        """True when [DONE] was received, or every choice that began has its finish_reason."""
        return self.is_done or bool(self.finish_reasons and not self._open)

    def read(self, body: bytes) -> None:
        """Read one chunk or a whole body. Raises ApiError when it is an error or not an answer."""
        try:
            piece = _DECODER.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self.invalid("it is not the JSON that the API specifies") from error
        if piece.error is not None:
            self._raise_error(body)
        if piece.usage is not None:
            self._read_usage(piece.usage)
        if piece.id and not self.answer_id:
            self.answer_id = piece.id
        if piece.choices is None and piece.data is None and piece.usage is None:
            raise self.invalid("it holds neither choices nor data")
        for choice in piece.choices or ():
            if choice.finish_reason is None:
                self._open.add(choice.index)
            else:
                self.finish_reasons.append(choice.finish_reason)
                self._open.discard(choice.index)

    def relayed(self, body: bytes | AsyncIterator[bytes], media_type: str = "application/json") -> Relayed:
        """The answer to pass on; its usage and finish reasons are filled while a stream is read."""
        return Relayed(body, self.usage, media_type, self.finish_reasons, self.answer_id)

    def invalid(self, what: str) -> ApiError:
        """The error for an answer that violates the API."""
        return upstream_errors.invalid(self._model, what)

    def failed(self, error: Exception, waiting_for: str) -> ApiError:
        """The error for a transport failure; `waiting_for` names the limit: "first token" or "idle"."""
        return upstream_errors.of_transport(error, self._model, waiting_for)

    def _raise_error(self, body: bytes) -> None:
        error = upstream_errors.of_error_body(body, self._secret, 502)
        raise error or self.invalid("it holds an error of an unknown shape")

    def _read_usage(self, found: _Usage) -> None:
        usage = self.usage
        usage.prompt_tokens = found.prompt_tokens or 0
        usage.completion_tokens = found.completion_tokens or 0
        if found.prompt_tokens_details is not None:
            usage.cached_tokens = found.prompt_tokens_details.cached_tokens or 0
        if found.completion_tokens_details is not None:
            usage.reasoning_tokens = found.completion_tokens_details.reasoning_tokens or 0


class AnswerStream:
    """A streamed answer as bytes: whole, checked events. `aclose` drops the upstream connection.

    Raises ApiError unless the answer is complete, so that a truncated stream is never taken for an answer.
    """

    def __init__(self, reply: Reply, answer: AnswerReader, idle_timeout_s: float) -> None:
        self._reply = reply
        self._answer = answer
        self._idle_timeout_s = idle_timeout_s
        self._events = EventReader()
        self._first = b""
        self._ended = False

    async def begin(self, timeout_s: float) -> None:
        """Wait for the first events: an error before them can still be a plain error response."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        try:
            while not self._first and not self._ended:
                self._first = await self._next(max(0.0, deadline_s - loop.time()), "first token")
        except BaseException:
            self._reply.close()
            raise

    def __aiter__(self) -> AnswerStream:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> bytes:
        """The next events."""
        if self._first:
            data, self._first = self._first, b""
            return data
        try:
            while not self._ended:
                if data := await self._next(self._idle_timeout_s, "idle"):
                    return data
        except BaseException:
            self._ended = True
            self._reply.close()
            raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop: close the connection of an upstream that is still generating. Idempotent."""
        self._ended = True
        self._first = b""
        self._reply.close()

    async def _next(self, timeout_s: float, waiting_for: str) -> bytes:
        """The events of the next read as bytes to send, b"" when there are none."""
        try:
            data = await self._reply.read(timeout_s)
            events = self._events.feed(data) if data else self._events.close()
        except upstream_errors.TRANSPORT_ERRORS as error:
            raise self._answer.failed(error, waiting_for) from error
        out = self._relay(events)
        if self._answer.is_done:
            # Read to the end of the response, so that the connection can be reused.
            self._ended = True
            await self._finish()
        elif not data:
            self._ended = True
            if not self._answer.is_complete:
                raise self._answer.invalid("its stream ended before the answer was complete")
            out += _DONE_EVENT
        return out

    def _relay(self, events: list[bytes]) -> bytes:
        out = bytearray()
        for event in events:
            if event.strip() == DONE:
                self._answer.is_done = True
                return bytes(out) + _DONE_EVENT
            if not event.strip():
                continue
            self._answer.read(event)
            out += b"data: "
            out += event.replace(b"\n", b"\ndata: ")
            out += b"\n\n"
        return bytes(out)

    async def _finish(self) -> None:
        try:
            if await self._reply.read(_LINGER_S):
                self._reply.close()
        except upstream_errors.TRANSPORT_ERRORS:
            self._reply.close()
