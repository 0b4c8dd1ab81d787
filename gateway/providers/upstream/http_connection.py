"""One HTTP/1.1 connection to an upstream: bytes out, one response in, under one deadline at a time."""

from __future__ import annotations

import asyncio
import select
from typing import cast

import httptools

from gateway.providers.upstream.transport import ConnectionBroken, ReplyTimedOut

MAX_FRAMING_BYTES = 64 * 1024
"""Bytes without any of the body among them: headers, informational responses, chunk sizes, trailers."""
HIGH_WATER_BYTES = 256 * 1024
"""Unread body above which reading pauses: a slow client slows the upstream down, and memory is bounded."""


class Connection(asyncio.Protocol):
    """A pooled connection. `send` starts an exchange; `wait` returns whenever something has arrived."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._poll = select.poll()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._paused = False
        self._framed = False
        self._framing_bytes = 0  # since the last of the body
        self.closed = False
        self.released_s = 0.0  # when it last became idle; the pool's
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.got_bytes = False  # of this response: then a retry could do the work twice
        self.has_headers = False
        self.complete = True
        self.reusable = False
        self._body: list[bytes] = []
        self._buffered_bytes = 0

    def send(self, data: bytes) -> None:
        """Start an exchange: write a whole request."""
        self._reset()
        self.complete = False
        self._framing_bytes = 0
        if self._transport is None:
            raise ConnectionBroken("a request was sent before the connection was made")
        self._transport.write(data)

    def wait(self, timeout_s: float) -> asyncio.Future[None]:
        """What is done when headers, body or the end are there. Raises ReplyTimedOut or ConnectionBroken."""
        if self._error is not None:
            raise self._error
        self._deadline_s = self._loop.time() + timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._expire)
        elif self._timer.when() > self._deadline_s:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline_s, self._expire)
        self._waiter = self._loop.create_future()
        return self._waiter

    def take(self) -> bytes:
        """The body bytes received and not yet taken."""
        if not self._body:
            return b""
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._buffered_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    @property
    def has_unread(self) -> bool:
        """True when the socket holds bytes, or its end, that the event loop has not read yet."""
        return bool(self._poll.poll(0))

    def stop_timer(self) -> None:
        """No deadline applies while the connection is idle in the pool."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Close at once; the upstream sees it and can stop generating."""
        self.stop_timer()
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _expire(self) -> None:
        # One timer per exchange: when it fires early, because the deadline has moved, it is set again.
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline_s:
            self._timer = self._loop.call_at(self._deadline_s, self._expire)
        else:
            self._waiter.set_exception(ReplyTimedOut())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, message: str) -> None:
        self._error = ConnectionBroken(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(self._error)
        self.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self._poll.register(transport.get_extra_info("socket"), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; its callbacks wake the reader."""
        if self.complete:  # unsolicited bytes: this connection cannot be trusted with another request
            self.reusable = False
            self.abort()
            return
        self.got_bytes = True
        self._framing_bytes += len(data)  # on_body sets it to 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the upstream switched protocols (101), which was not asked for")
        except httptools.HttpParserError as error:
            self._fail(f"the upstream does not speak HTTP/1.1 ({type(error).__name__})")
        else:
            if self._framing_bytes > MAX_FRAMING_BYTES or self._buffered_bytes > HIGH_WATER_BYTES:
                self._check_bounds()

    def _check_bounds(self) -> None:
        if self.complete:
            return
        if self._framing_bytes > MAX_FRAMING_BYTES:
            part = "chunk framing is" if self.has_headers else "headers are"
            self._fail(f"the upstream's {part} longer than {MAX_FRAMING_BYTES} bytes")
        elif self._transport and self._buffered_bytes > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete a body that lasts until the connection closes; fail any other open exchange."""
        self.closed = True
        self.stop_timer()
        if self.complete:
            return
        if self.has_headers and not self._framed and exc is None:
            self.complete = True
            self._wake()
        elif self._error is None:
            self._fail("the upstream closed the connection before its answer was complete")

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A response begins; after an informational one (1xx) the final one follows."""
        if self.complete:  # a second response to one request: ignored, and the connection is not reused
            self.reusable = False
        else:
            self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; the values of a repeated one are joined. Trailers are dropped."""
        if self.has_headers:
            return
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Wake the reader that waits for the status."""
        status = self._parser.get_status_code()
        if status < 200 or self.complete:
            return
        self.status = status
        self._framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        self.has_headers = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        if self.complete:
            return
        self._framing_bytes = 0
        self._body.append(body)
        self._buffered_bytes += len(body)
        self._wake()

    def on_message_complete(self) -> None:
        """End the exchange."""
        if not self.has_headers or self.complete:  # the end of an informational or a surplus response
            return
        self.complete = True
        self.reusable = self._parser.should_keep_alive()
        self._wake()
