"""An upstream's server-sent events: each one checked, within time limits, complete or an error."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from gateway.errors import ApiError
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.sse import EventReader
from gateway.providers.upstream.transport import Reply, ReplyTimedOut

DONE = b"[DONE]"
_DONE_EVENT = b"data: [DONE]\n\n"
MAX_HELD_EVENTS = 64
"""Before the first content. More are passed on: an upstream may have content that is not known here."""
_LINGER_S = 0.05
"""Wait for the end of the response after [DONE]; if it comes later, the connection is not reused."""


class EventConsumer(Protocol):
    """What reads the events of a stream: an AnswerReader, or that of another API."""

    @property
    def has_content(self) -> bool:
        """Whether what was read holds text, reasoning or a call of a tool."""
        ...

    def take(self, event: bytes, /) -> bool:
        """Read one event; False where the client does not get it. Raises ApiError."""
        ...

    def check_complete(self) -> None:
        """Raise ApiError unless the answer is complete: the stream has ended."""
        ...

    def failed(self, error: Exception, waiting_for: str) -> ApiError:
        """The error for a transport failure; `waiting_for` names the limit: "first token" or "idle"."""
        ...

    def settle(self, *, is_complete: bool) -> None:
        """Complete the usage: the stream has ended, or is closed before its end."""
        ...


class EventSplitter(Protocol):
    """Finds the events in a stream's bytes: server-sent ones, or those of another framing."""

    def feed(self, chunk: bytes, /) -> list[bytes]:
        """The events that this chunk completes. Raises an error of TRANSPORT_ERRORS."""
        ...

    def close(self) -> list[bytes]:
        """What is left at the end of the stream."""
        ...


class AnswerStream(AsyncIterator[bytes]):
    """A streamed answer as bytes: whole, checked events. `aclose` drops the upstream connection.

    Raises ApiError unless the answer is complete, so that a truncated stream is never taken for an answer.
    """

    def __init__(
        self,
        reply: Reply,
        answer: EventConsumer,
        idle_timeout_s: float,
        events: EventSplitter | None = None,
    ) -> None:
        """`events`: by default those of server-sent events."""
        self._reply = reply
        self._answer = answer
        self._idle_timeout_s = idle_timeout_s
        self._events = events or EventReader()
        self._first = b""
        self._num_events = 0
        self._is_done = False  # [DONE] was received
        self._ended = False

    async def begin(self, timeout_s: float) -> None:
        """Wait for the first content: after an error before it, the request can still be answered otherwise.

        `timeout_s` is for all of it: a server may send a role at once and then compute the prompt.
        """
        due_s = time.monotonic() + timeout_s
        try:
            first = await self._next(timeout_s, "first token")
            while not (self._ended or self._answer.has_content or self._num_events >= MAX_HELD_EVENTS):
                first += await self._next(due_s - time.monotonic(), "first token")
            self._first = first
        except BaseException:
            self._reply.close()
            raise

    def __anext__(self) -> Coroutine[Any, Any, bytes]:
        """The next events."""
        return self._next(self._idle_timeout_s, "idle", has_begun=True)

    async def aclose(self) -> None:
        """Stop: close the connection of an upstream that is still generating. Idempotent."""
        self._ended = True
        self._first = b""
        self._reply.close()
        self._answer.settle(is_complete=False)

    async def _next(self, timeout_s: float, waiting_for: str, *, has_begun: bool = False) -> bytes:
        """The next events. Comments and blank lines do not extend the time limit."""
        out, self._first = self._first, b""
        deadline_s = time.monotonic() + timeout_s
        try:
            while not out and not self._ended:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:  # bytes may always be ready, so that no read has to wait
                    raise ReplyTimedOut
                data = await self._reply.read(left_s)
                out = self._relay(self._events.feed(data) if data else self._events.close())
                if self._is_done or not data:
                    out += await self._end()
        except BaseException as error:
            if has_begun:
                await self.aclose()
            if isinstance(error, upstream_errors.TRANSPORT_ERRORS):
                raise self._answer.failed(error, waiting_for) from error
            raise
        if not out:
            raise StopAsyncIteration
        return out

    def _relay(self, events: list[bytes]) -> bytes:
        out = bytearray()
        for event in events:
            stripped = event.strip()
            if stripped == DONE:
                self._is_done = True
                break
            if not stripped:
                continue
            self._num_events += 1
            if not self._answer.take(event):
                continue
            out += b"data: "
            out += event.replace(b"\n", b"\ndata: ")
            out += b"\n\n"
        return bytes(out)

    async def _end(self) -> bytes:
        self._ended = True
        self._answer.check_complete()
        self._answer.settle(is_complete=True)
        try:  # to read to the end of the response, so that the connection can be reused
            if await self._reply.read(_LINGER_S):
                self._reply.close()
        except upstream_errors.TRANSPORT_ERRORS:
            self._reply.close()
        return _DONE_EVENT
