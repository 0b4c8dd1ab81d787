"""One request and its response on an HTTP/1.1 connection: ASGI's `receive` and `send`."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope

from gateway.errors import ApiError, ClientGone
from gateway.web.asgi_endpoint import log_failure
from gateway.web.server_state import ServerState

access_logger = logging.getLogger("penstock.access")

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_BODILESS = (204, 304)
_LAST_CHUNK = b"0\r\n\r\n"
_SSE_COMMENT = b":\n\n"


class Connection(Protocol):
    """The connection that a request came by, and its response goes by."""

    server: ServerState
    is_lost: bool
    is_write_paused: bool

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them while the client is slow."""
        ...

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""
        ...

    def resume_reading(self) -> None:
        """Read on, after a pause."""
        ...

    def end_cycle(self, cycle: RequestCycle) -> None:
        """Go on with the next request, or end the connection."""
        ...


class RequestCycle:
    """The connection feeds it the body; the application calls `receive` and `send`."""

    __slots__ = (
        "_chunk_tail", "_connection", "_error", "_expects_continue", "_has_body", "_head",
        "_is_body_received", "_is_chunked", "_is_delivered", "_is_disconnected", "_is_ended",
        "_is_event_stream", "_is_started", "_num_left_bytes", "_num_waiting_bytes", "_pieces",
        "_waiter", "keep_alive", "scope",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, scope: Scope, *, keep_alive: bool, expects_continue: bool = False
    ) -> None:
        """`keep_alive`: whether the connection stays open when this request and its response are complete."""
        self.scope = scope
        self.keep_alive = keep_alive
        self._connection = connection
        self._expects_continue = expects_continue
        self._pieces: list[bytes] = []  # of the body, not yet received by the application
        self._num_waiting_bytes = 0  # in them
        self._is_body_received = False  # by us
        self._is_delivered = False  # to the application
        self._is_disconnected = False
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_started = False
        self._is_ended = False
        self._has_body = True
        self._is_chunked = False
        self._is_event_stream = False
        self._num_left_bytes = 0  # of the content-length
        self._chunk_tail = b""
        self._head = b""  # not yet written

    async def run(self, app: ASGIApp) -> None:
        """Let the application answer. What it raises is logged: its own endpoints answer every error."""
        try:
            await app(self.scope, self.receive, self.send)
        except ClientGone:
            pass  # also while an error was sent
        except Exception as failure:  # noqa: BLE001 - this is the top of the task
            log_failure(failure, "-")
        finally:
            if not self._is_ended:  # no whole response: the client must see the connection break off
                self._is_ended = True
                self.keep_alive = False
                self._connection.end_cycle(self)

    def feed(self, piece: bytes) -> int:
        """Add a piece of the body; returns the bytes that wait for the application."""
        if self._is_ended:
            return 0
        self._pieces.append(piece)
        self._num_waiting_bytes += len(piece)
        self._wake()
        return self._num_waiting_bytes

    def end_body(self) -> None:
        """The body is complete."""
        self._is_body_received = True
        self._wake()

    def fail(self, error: ApiError) -> None:
        """The body will never be complete: `receive` raises the error."""
        self._error = error
        self._wake()

    def disconnect(self) -> None:
        """The client is gone, or cannot be told from one that is: `receive` reports it."""
        self._is_disconnected = True
        self._wake()

    def probe(self) -> None:
        """Write what every client ignores. If this one has closed its socket, a later write will fail."""
        if not self._is_started:
            self._connection.write(CONTINUE)
        elif self._is_event_stream and self._is_chunked and self._chunk_tail == b"\n\n":  # between two events
            self._connection.write(b"%x\r\n%b\r\n" % (len(_SSE_COMMENT), _SSE_COMMENT))

    async def receive(self) -> Message:
        """ASGI: the next piece of the body, or the disconnection. Raises the error of a broken body."""
        if self._expects_continue and not self._is_started:
            self._connection.write(CONTINUE)
        self._expects_continue = False
        while True:
            if self._is_disconnected or self._is_ended:
                return {"type": "http.disconnect"}
            if self._error is not None:
                raise self._error
            if self._pieces or (self._is_body_received and not self._is_delivered):
                body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces, self._num_waiting_bytes = [], 0
                self._is_delivered = self._is_body_received
                self._connection.resume_reading()  # also after the last: a client that leaves must be seen
                return {"type": "http.request", "body": body, "more_body": not self._is_delivered}
            if not self._is_body_received:
                self._connection.resume_reading()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def send(self, message: Message) -> None:
        """ASGI: the head or a piece of the response. Waits while the client is slow; raises ClientGone."""
        if self._connection.is_write_paused:
            await self._connection.drain()
        if self._connection.is_lost:
            raise ClientGone("The client left before the answer was complete.")
        if not self._is_started:
            self._start(message["status"], message.get("headers", []))
        elif self._is_ended:
            raise RuntimeError("the response is already complete")
        else:
            self._write(message.get("body", b""), is_last=not message.get("more_body", False))

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        connection, scope = self._connection, self.scope
        line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status  # such as our 499, an upstream's 529
        lines = [line, connection.server.date_header]
        has_length = False
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                has_length = True
                self._num_left_bytes = int(value)
            elif name == b"content-type":
                self._is_event_stream = value.startswith(b"text/event-stream")
        self._is_started = True
        self._has_body = status not in _BODILESS and scope["method"] != "HEAD"
        if self._has_body and not has_length:
            # A response to HTTP/1.0 ends where its connection does.
            self._is_chunked = scope["http_version"] != "1.0"
            self._num_left_bytes = -1
        server = connection.server
        if not self._is_body_received or server.is_draining or server.is_leaving:
            # What follows might be the rest of the body: never parse it as a request.
            self.keep_alive = False
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        if has_length:  # the body follows at once: both go in one write
            self._head = b"".join(lines)
        else:
            connection.write(b"".join(lines))
        if connection.server.has_access_log:
            host, port = (scope["client"] or ("-", 0))[:2]
            # As sent: decoded, a path may hold line breaks. Without the query: it may hold keys and text.
            request = scope["method"], scope["raw_path"].decode("ascii"), scope["http_version"]
            access_logger.info('%s:%d - "%s %s HTTP/%s" %d', host, port, *request, status)

    def _write(self, body: bytes, *, is_last: bool) -> None:
        if not self._has_body:
            data = b""
        elif self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self._chunk_tail = body[-2:]
            if is_last:
                data += _LAST_CHUNK
        else:
            data = body
            if self._num_left_bytes >= 0:
                self._num_left_bytes -= len(body)
                if self._num_left_bytes < 0 or (is_last and self._num_left_bytes):
                    raise RuntimeError("the response is not as long as its content-length")
        data, self._head = self._head + data, b""
        if data:
            self._connection.write(data)
        if is_last:
            self._is_ended = True
            self._wake()
            self._connection.end_cycle(self)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
