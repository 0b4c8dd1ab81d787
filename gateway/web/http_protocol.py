"""HTTP/1.1 on one client connection: bytes become requests, within limits of size and time.

llhttp parses. Here are the rules around it: which heads are refused, how much may be received, for how long,
and when a connection ends. Nothing depends on how the bytes were split into TCP segments.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto
from typing import cast
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url
from starlette.types import Scope

from gateway.errors import ApiError, InvalidRequest
from gateway.web.asgi_endpoint import REFUSAL
from gateway.web.request_cycle import RequestCycle
from gateway.web.server_state import STOP, ServerState

KEEP_ALIVE_S = 75.0
"""Longer than a load balancer's usual 60 s, so that we never close a connection it is about to reuse."""
LINGER_S = 2.0
"""How long a client may go on sending after its last response, which closing at once would reset and lose."""
SEND_TIMEOUT_S = 60.0
"""How long the rest of a last response may wait for a client that reads nothing."""
MAX_WAITING_BYTES = 64 * 1024
"""Bytes of a body before we stop reading until the application takes them."""
MAX_PIPELINED = 32
"""Unanswered requests on one connection. When it is reached, that request is the connection's last."""
FIRST_PROBE_S, LAST_PROBE_S = 0.1, 5.0
"""Time between two probes of a client that has closed its side, doubling from the first to the last."""
_NEVER = float("inf")
_FIELD_OVERHEAD_BYTES = len(b": \r\n")


class _Phase(Enum):
    """What the next byte from the client belongs to."""

    IDLE = auto()  # a new request
    HEAD = auto()
    BODY = auto()  # or its trailers
    OVER = auto()  # ignored: no more requests on this connection
    LINGER = auto()  # ignored: every response is sent, we wait for the client to close


class HttpProtocol(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: ServerState) -> None:
        self.is_lost = False
        self.is_write_paused = False
        self.deadline_s = server.now_s + server.limits.head_timeout_s
        self.server = server
        self._limits = server.limits
        self._loop = asyncio.get_running_loop()
        self._parser = HttpRequestParser(self)
        self._phase = _Phase.IDLE
        self._cycles: deque[RequestCycle] = deque()  # the first is being answered, later ones wait
        self._error: ApiError | None = None
        self._is_half_closed = False
        self._is_reading_paused = False
        self._writable = asyncio.Event()
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._num_fields = 0  # of the head, then of the trailers
        self._fields_bytes = 0
        self._body_bytes = 0
        self._stalled_bytes = 0  # of an unfinished line
        self._unsent_bytes = 0  # of the last response

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        self._client = transport.get_extra_info("peername")
        self._address = transport.get_extra_info("sockname")
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by either side."""
        self.is_lost = True
        self.server.connections.discard(self)
        self._writable.set()
        self._phase = _Phase.OVER
        for cycle in self._cycles:
            cycle.disconnect()
        self._cycles.clear()
        del self._parser, self._transport  # they refer to us, and keep what a slow client has not read

    def data_received(self, data: bytes) -> None:
        """Parse what the client has sent."""
        if self._phase is _Phase.OVER or self._phase is _Phase.LINGER:
            return
        parsed_bytes = self._fields_bytes + self._body_bytes
        try:
            try:
                self._parser.feed_data(data)
            except HttpParserUpgrade as upgrade:
                self._ignore_upgrade(data[upgrade.args[0] :])
        except HttpParserError as error:
            self._refuse(self._error or _malformed(str(error)))
            return
        if parsed_bytes != self._fields_bytes + self._body_bytes:
            self._stalled_bytes = 0
        elif self._phase is _Phase.HEAD or self._phase is _Phase.BODY:
            self._stalled_bytes += len(data)
            if self._fields_bytes + self._stalled_bytes > self._limits.max_head_bytes:
                self._refuse(self._too_large())

    def eof_received(self) -> bool:
        """The client sends no more; it may still read. Returns True to keep the connection open."""
        self._is_half_closed = True
        phase, self._phase = self._phase, _Phase.OVER
        if phase is _Phase.HEAD:
            self._phase = phase
            self._refuse(_malformed("the connection ended inside the headers"))
        elif phase is _Phase.BODY:
            self._cycles[-1].disconnect()
        if not self._cycles or phase is _Phase.LINGER:
            return False
        self._cycles[-1].keep_alive = False
        if self._cycles[0].scope["http_version"] == "1.0":  # cannot be probed, and proxies that use it never
            self._cycles[0].disconnect()  # half-close: most likely the client is gone
        else:
            self._loop.call_later(FIRST_PROBE_S, self._probe, FIRST_PROBE_S)
        return True

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.is_write_paused = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.is_write_paused = False
        self._writable.set()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """The first byte of a head."""
        if self._phase is _Phase.OVER:
            raise HttpParserError("no more requests")
        self._phase = _Phase.HEAD
        self.deadline_s = self.server.now_s + self._limits.head_timeout_s
        self._url = b""
        self._headers = []
        self._num_fields = self._fields_bytes = self._body_bytes = self._stalled_bytes = 0

    def on_url(self, piece: bytes) -> None:
        """A part of the request's target."""
        self._url += piece
        self._count(len(piece))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: those are dropped, since nothing here may be said after the body."""
        self._num_fields += 1
        self._count(len(name) + len(value) + _FIELD_OVERHEAD_BYTES)
        if self._phase is _Phase.HEAD:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Start the request, or let it wait for those before it."""
        parser = self._parser
        version = parser.get_http_version()
        names = [name for name, _ in self._headers]
        self._check_head(version, names)
        keep_alive = version == "1.1" and parser.should_keep_alive() and not parser.should_upgrade()
        expects_continue = b"expect" in names and version == "1.1"
        scope = self._new_scope(parser.get_method().decode("ascii"), version, self._headers)
        scope["raw_path"], scope["query_string"] = _split_target(self._url)
        path = scope["raw_path"].decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        self._phase = _Phase.BODY
        self.deadline_s = self.server.now_s + self._limits.body_timeout_s
        self._num_fields = self._fields_bytes = 0
        self._add(RequestCycle(self, scope, keep_alive=keep_alive, expects_continue=expects_continue))

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(piece)
        if self._cycle.feed(piece) > MAX_WAITING_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        """The body and its trailers are complete."""
        if self._parser.should_upgrade():
            return  # llhttp takes the body for another protocol
        self._cycle.end_body()
        if len(self._cycles) >= MAX_PIPELINED:
            self._cycle.keep_alive = False
        self._phase = _Phase.IDLE if self._cycle.keep_alive else _Phase.OVER
        self.deadline_s = _NEVER

    # What requests need

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them while the client is slow."""
        if not self.is_lost:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""
        await self._writable.wait()

    def resume_reading(self) -> None:
        """Read on, after a pause."""
        if self._is_reading_paused and not self.is_lost:
            self._is_reading_paused = False
            self._transport.resume_reading()

    def end_cycle(self, cycle: RequestCycle) -> None:
        """Go on with the next request, or end the connection."""
        if self.is_lost:
            return
        self._cycles.popleft()
        if not cycle.keep_alive:
            self._linger()
            return
        if self._cycles:
            self._start(self._cycles[0])
        elif self._phase is _Phase.IDLE:
            if self.server.is_draining:
                self._transport.close()
            self.deadline_s = self.server.now_s + KEEP_ALIVE_S
        self.resume_reading()

    # What the server needs

    def check_deadline(self, tick_s: float) -> None:
        """Act on a head or body that takes too long, an idle connection, or the end of lingering."""
        if self._is_reading_paused:
            self.deadline_s += tick_s  # the client is not to blame
        if self.server.now_s < self.deadline_s:
            return
        self.deadline_s = _NEVER
        limits = self._limits
        if self._phase is _Phase.HEAD:
            self._refuse(_timed_out("headers", limits.head_timeout_s))
        elif self._phase is _Phase.BODY:
            self._refuse(_timed_out("body", limits.body_timeout_s))
        elif self._phase is not _Phase.LINGER:
            self._linger()
        elif self._unsent_bytes == self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._await_client()

    def shut_down(self) -> None:
        """Close when the requests that have arrived are answered."""
        if self._cycles:
            self._cycles[-1].keep_alive = False
        elif self._phase is not _Phase.LINGER:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # Rules

    def _count(self, num_bytes: int) -> None:
        self._fields_bytes += num_bytes
        if self._fields_bytes > self._limits.max_head_bytes or self._num_fields > self._limits.max_headers:
            self._fail(self._too_large())

    def _check_head(self, version: str, names: list[bytes]) -> None:
        """Refuse what llhttp accepts, but what a proxy before us may read in another way."""
        if version not in ("1.0", "1.1"):
            self._fail(_malformed(f"the version is {version}"))
        if names.count(b"host") != 1 and (version == "1.1" or b"host" in names):
            self._fail(_malformed(f"it has {names.count(b'host')} Host headers, not 1"))
        if b"transfer-encoding" in names:
            codings = [value.strip().lower() for name, value in self._headers if name == b"transfer-encoding"]
            if codings != [b"chunked"] or version == "1.0":
                self._fail(_malformed("its Transfer-Encoding is not 'chunked'"))

    def _too_large(self) -> ApiError:
        limits = self._limits
        return InvalidRequest(
            f"The request's headers or trailers exceed {limits.max_head_bytes} bytes or {limits.max_headers} "
            "fields: send fewer or shorter ones.",
            status=431,
            code="headers_too_large",
        )

    def _fail(self, error: ApiError) -> None:
        """Stop the parser; `data_received` refuses with this error."""
        self._error = error
        raise HttpParserError

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error after the responses before it, then close."""
        if self._phase is _Phase.OVER:
            return
        is_body = self._phase is _Phase.BODY
        self._phase = _Phase.OVER
        self.deadline_s = _NEVER
        if is_body:
            self._cycle.fail(error)
        else:
            # The application answers, so that refused heads get response, metrics and trace like others.
            scope = self._new_scope("_OTHER", "1.1", [])
            scope[REFUSAL] = error
            self._add(RequestCycle(self, scope, keep_alive=False))
            self._cycle.end_body()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Go on as if no upgrade had been offered (RFC 9110, 7.8); this request is the connection's last.

        llhttp stops after such a head. A second parser reads the body, from a head that only frames it.
        """
        headers = dict(self._headers)
        framing = b""
        if self._parser.get_method() != b"CONNECT":  # which has no body
            for name in (b"content-length", b"transfer-encoding"):
                if name in headers:
                    framing = name + b": " + headers[name] + b"\r\n"
        self._parser = HttpRequestParser(_BodyCallbacks(self))
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n")
        self._parser.feed_data(rest)

    def _new_scope(self, method: str, version: str, headers: list[tuple[bytes, bytes]]) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": version,
            "method": method,
            "scheme": "http",
            "root_path": "",
            "path": "",
            "raw_path": b"",
            "query_string": b"",
            "headers": headers,
            "client": self._client,
            "server": self._address,
            STOP: self.server.stop,
        }

    def _add(self, cycle: RequestCycle) -> None:
        self._cycle = cycle
        self._cycles.append(cycle)
        if len(self._cycles) == 1:
            self._start(cycle)

    def _start(self, cycle: RequestCycle) -> None:
        task = self._loop.create_task(cycle.run(self.server.app))
        self.server.tasks.add(task)
        task.add_done_callback(self.server.tasks.discard)

    def _pause_reading(self) -> None:
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _linger(self) -> None:
        """Close, but let the client read its last response first."""
        self._cycles.clear()
        self._phase = _Phase.LINGER
        self._await_client()
        self.resume_reading()
        if self._is_half_closed:
            self._transport.close()
        else:
            self._transport.write_eof()

    def _await_client(self) -> None:
        """Give it time to read, or to close when it has read everything."""
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self.deadline_s = self.server.now_s + (SEND_TIMEOUT_S if self._unsent_bytes else LINGER_S)

    def _probe(self, waited_s: float) -> None:
        """Find out whether a client that closed its side still reads.

        A closed socket looks like a half-closed one until we send: only the closed one answers with a reset.
        """
        if self._cycles:
            self._cycles[0].probe()
            next_s = min(2 * waited_s, LAST_PROBE_S)
            self._loop.call_later(next_s, self._probe, next_s)


class _BodyCallbacks:
    """The callbacks that concern a body."""

    def __init__(self, protocol: HttpProtocol) -> None:
        self.on_header = protocol.on_header
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete


def _split_target(target: bytes) -> tuple[bytes, bytes]:
    """The path, still percent-encoded, and the query."""
    if b"://" in target and not target.startswith(b"/"):  # absolute form, as sent to proxies
        parts = parse_url(target)
        return parts.path or b"/", parts.query or b""
    path, _, query = target.partition(b"?")
    return path, query


def _malformed(reason: str) -> ApiError:
    return InvalidRequest(
        f"The bytes received are not a valid HTTP/1.1 request: {reason}.", code="invalid_http"
    )


def _timed_out(part: str, limit_s: float) -> ApiError:
    return InvalidRequest(
        f"The request's {part} did not arrive within {limit_s:g} s: send it faster.",
        status=408,
        code="request_timeout",
    )
