"""Reads usage, finish reasons and errors from an upstream's answer, decoding each piece once.

The typed decode also validates the JSON, so a truncated or garbled piece never passes as an answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.answer import Relayed, Usage
from gateway.errors import ApiError
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.sse import EventReader
from gateway.providers.upstream.transport import Reply, ReplyTimedOut

logger = logging.getLogger(__name__)

MAX_USAGE_TOKENS = 100_000_000
"""More than any model takes or gives: such a count is an error, and would spoil the sums in the metrics."""
MAX_TOOL_CALLS = 1024
"""Clients make a list as long as the highest index."""
DONE = b"[DONE]"
_LINGER_S = 0.05
"""Wait for the end of the response after [DONE]; if it comes later, the connection is not reused."""
_DONE_EVENT = b"data: [DONE]\n\n"


_Tokens = Annotated[int, Meta(ge=0, le=MAX_USAGE_TOKENS)] | None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: _Tokens = 0
    reasoning_tokens: _Tokens = 0


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _ToolCall(msgspec.Struct, gc=False):
    index: Annotated[int, Meta(ge=0, lt=MAX_TOOL_CALLS)] | None = None


class _Delta(msgspec.Struct, gc=False):
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    index: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    delta: _Delta | None = None


_NO_USAGE = msgspec.Raw(b"null")


class _Item(msgspec.Struct, gc=False):
    """One vector: validated as JSON and skipped."""


class _Piece(msgspec.Struct, gc=False):
    """A whole answer, or one chunk of a streamed one."""

    id: str | None = None
    usage: msgspec.Raw = _NO_USAGE  # checked apart: a bad one does not spoil the answer
    choices: list[_Choice] | None = None
    error: object = None
    data: list[_Item] | None = None  # of embeddings


_DECODER = msgspec.json.Decoder(_Piece)
_USAGE_DECODER = msgspec.json.Decoder(_Usage)
_JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class AnswerReader:
    """Follows one answer: fills `usage` and `finish_reasons`, and checks that it is complete."""

    __slots__ = (
        "_finished", "_has_bad_usage", "_model", "_num_choices", "_num_vectors", "_redactor", "answer_id",
        "finish_reasons", "usage",
    )  # fmt: skip

    def __init__(self, model: str, redactor: Redactor, num_choices: int, num_vectors: int) -> None:
        """`num_choices`, `num_vectors`: what was asked for. `redactor` cleans what is shown elsewhere."""
        self.usage = Usage()
        self.finish_reasons: list[str] = []
        self.answer_id = ""
        self._model = model
        self._redactor = redactor
        self._num_choices = num_choices
        self._num_vectors = num_vectors
        self._finished: set[int] = set()  # choices that have their finish_reason
        self._has_bad_usage = False

    def check_complete(self) -> None:
        """At the end of a stream: every choice that was asked for has its finish_reason. Raises ApiError."""
        if len(self._finished) < self._num_choices:
            count = f"{len(self._finished)} of {self._num_choices} choices have a finish_reason"
            raise self.invalid(f"its stream ended before the answer was complete: {count}")

    def read_whole(self, body: bytes) -> None:
        """Read a whole answer. Raises ApiError when it is an error, not an answer, or lacks a part."""
        piece = self._decode(body)
        num_choices, num_vectors = len(piece.choices or ()), len(piece.data or ())
        if self._num_choices and num_choices != self._num_choices:
            raise self.invalid(f"it has {num_choices} of {self._num_choices} choices")
        if self._num_vectors and num_vectors != self._num_vectors:
            raise self.invalid(f"it has {num_vectors} of {self._num_vectors} vectors")
        self._read(piece)

    def read(self, body: bytes) -> None:
        """Read one chunk. Raises ApiError when it is an error or not a part of an answer."""
        self._read(self._decode(body))

    def _decode(self, body: bytes) -> _Piece:
        try:
            if not body.isascii():
                body.decode()  # what the decoder below skips, it does not check
            piece = _DECODER.decode(body)
        except _JSON_ERRORS as error:
            raise self.invalid("it is not the JSON that the API specifies") from error
        if piece.error is not None:
            self._raise_error(body)
        if piece.usage is not _NO_USAGE and bytes(piece.usage) == b"null":
            piece.usage = _NO_USAGE
        if piece.choices is None and piece.data is None and piece.usage is _NO_USAGE:
            raise self.invalid("it holds neither choices nor data")
        return piece

    def _read(self, piece: _Piece) -> None:
        if piece.usage is not _NO_USAGE:
            self._read_usage(piece.usage)
        if piece.id and not self.answer_id:
            self.answer_id = self._redactor.clean(piece.id, upstream_errors.MAX_NAME_CHARACTERS)
        for choice in piece.choices or ():
            if choice.index >= self._num_choices:
                raise self.invalid(f"it has a choice of index {choice.index}, of {self._num_choices} choices")
            # Some repeat the finish_reason, and Azure sends content filter results after it.
            # An empty one in every chunk means none.
            if choice.finish_reason and choice.index not in self._finished:
                self._finished.add(choice.index)
                name = self._redactor.clean(choice.finish_reason, upstream_errors.MAX_NAME_CHARACTERS)
                self.finish_reasons.append(name)

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
        error = upstream_errors.of_error_body(body, self._redactor, 502)
        raise error or self.invalid("it holds an error of an unknown shape")

    def _read_usage(self, raw: msgspec.Raw) -> None:
        try:
            found = _USAGE_DECODER.decode(raw)
        except _JSON_ERRORS:
            if not self._has_bad_usage:  # once per answer: it may be in every chunk
                self._has_bad_usage = True
                logger.warning("upstream of model %r sent an invalid usage: not counted", self._model)
            return
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
        self._is_done = False  # [DONE] was received
        self._ended = False

    async def begin(self, timeout_s: float) -> None:
        """Wait for the first events: an error before them can still be a plain error response."""
        try:
            self._first = await self._next(timeout_s, "first token")
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
            data = await self._next(self._idle_timeout_s, "idle")
        except BaseException:
            self._ended = True
            self._reply.close()
            raise
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        """Stop: close the connection of an upstream that is still generating. Idempotent."""
        self._ended = True
        self._first = b""
        self._reply.close()

    async def _next(self, timeout_s: float, waiting_for: str) -> bytes:
        """The next events, b"" at the end. Comments and blank lines do not extend the time limit."""
        deadline_s = time.monotonic() + timeout_s
        out = b""
        while not out and not self._ended:
            left_s = deadline_s - time.monotonic()
            try:
                if left_s <= 0:  # bytes may always be ready, so that no read has to wait
                    raise ReplyTimedOut
                data = await self._reply.read(left_s)
                events = self._events.feed(data) if data else self._events.close()
            except upstream_errors.TRANSPORT_ERRORS as error:
                raise self._answer.failed(error, waiting_for) from error
            out = self._relay(events)
            if self._is_done or not data:
                out += await self._end()
        return out

    def _relay(self, events: list[bytes]) -> bytes:
        out = bytearray()
        for event in events:
            if event.strip() == DONE:
                self._is_done = True
                break
            if not event.strip():
                continue
            self._answer.read(event)
            out += b"data: "
            out += event.replace(b"\n", b"\ndata: ")
            out += b"\n\n"
        return bytes(out)

    async def _end(self) -> bytes:
        self._ended = True
        self._answer.check_complete()
        try:  # to read to the end of the response, so that the connection can be reused
            if await self._reply.read(_LINGER_S):
                self._reply.close()
        except upstream_errors.TRANSPORT_ERRORS:
            self._reply.close()
        return _DONE_EVENT
