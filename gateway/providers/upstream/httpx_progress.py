"""How far an httpx request came: whether it may be sent again after its connection broke."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import h2.errors
import h2.events
import httpcore2

_current: ContextVar[RequestProgress | None] = ContextVar("request_progress", default=None)


class RequestProgress:
    """One request on its connection. Use it as a context around the sending.

    `trace` is for httpx's extension of that name; streams of WatchedBackend tell it of bytes.
    """

    def __init__(self, on_send: Callable[[], None] = lambda: None) -> None:
        """`on_send` is called when there is a connection, and the request is about to be sent."""
        self._on_send = on_send
        self.got_bytes = False  # from the connection, since the request was sent
        self.is_surplus = False  # the answer was there before the request: httpcore keeps what it has read
        self._has_connected = False  # it opened a connection of its own
        self._stream_id = 0  # with HTTP/2

    def __enter__(self) -> RequestProgress:
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    async def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Follow httpcore's trace events."""
        self._has_connected |= event.startswith("connection.connect_")
        self._stream_id = info.get("stream_id", self._stream_id)
        if event.endswith(".send_request_headers.started") and info["request"].method != b"CONNECT":
            self._on_send()
        elif event == "http11.receive_response_headers.complete":
            self.is_surplus = not self.got_bytes

    def is_stale(self, error: BaseException) -> bool:
        """True when the upstream has not worked on the request: a reused connection had ended before.

        With HTTP/2 the upstream may say so, in a GOAWAY or as REFUSED_STREAM. Any other reset of the stream
        may come after work was done.
        """
        if self._has_connected:
            return False
        cause = error.__cause__
        event = cause.args[0] if isinstance(cause, httpcore2.RemoteProtocolError) and cause.args else None
        if isinstance(event, h2.events.ConnectionTerminated):
            return (event.last_stream_id or 0) < self._stream_id
        if isinstance(event, h2.events.StreamReset):
            return event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
        return not self.got_bytes


class WatchedBackend(httpcore2.AnyIOBackend):
    """Opens connections that tell the current RequestProgress of the bytes it reads."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Open a watched TCP connection. Errors that AnyIOBackend lets through become ConnectError."""
        try:
            stream = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        except (UnicodeError, OverflowError, ExceptionGroup) as error:  # the name, the port
            raise httpcore2.ConnectError(type(error).__name__) from error
        return _WatchedStream(stream)

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Open a watched connection to a Unix socket."""
        return _WatchedStream(await super().connect_unix_socket(path, timeout, socket_options))


class _WatchedStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        if data and (progress := _current.get()) is not None:
            progress.got_bytes = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _WatchedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401
        return self._stream.get_extra_info(info)
