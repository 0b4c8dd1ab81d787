"""The seam between upstream providers and HTTP: what a transport does, and how it fails.

Two transports implement it: `http_client` (HTTP/1.1, the fast path) and `httpx_transport` (proxies, custom CA
bundles, HTTP/2, Unix sockets).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.providers.upstream.decompression import DecompressionError, Decompressor, RatioExceeded

MAX_READ_BYTES = 64 * 1024
"""Bytes per read: bounds the time for which the reader's work on them blocks the event loop."""
MAX_BUSY_S = 0.005
"""After this long without a wait for the network, a read lets the event loop run other tasks."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How to reach an upstream, where that is not HTTP/1.1 to the host of its URL."""

    proxy: str = ""  # http://[USER:PASSWORD@]HOST:PORT
    ca_bundle: str = ""  # a PEM file, in place of the system's CA store
    http2: bool = False
    unix_socket: str = ""

    @property
    def is_default(self) -> bool:
        """True when `http_client` can serve it."""
        return not (self.proxy or self.ca_bundle or self.http2 or self.unix_socket)


class TransportError(Exception):
    """No response, or only a part of one. The message names no key, URL or proxy."""


class ConnectFailed(TransportError):
    """No connection: name not found, refused, unreachable, TLS failed. The message says which."""


class ConnectTimedOut(TransportError):
    """No connection within the connect timeout."""


class ConnectionBroken(TransportError):
    """The connection ended, or violated HTTP, before the response was complete."""


class AnswerTooLong(ConnectionBroken):
    """The answer, or a part of it, is longer than is taken; so would be the next one."""


class ReplyTimedOut(TransportError):
    """The upstream is connected but sent nothing within the time limit."""


class Reply(ABC):
    """A response whose headers have arrived. Read it to its end, or `close()` it, which aborts it."""

    __slots__ = ("_busy_since_s", "_decompressor", "_is_compressed", "_unread", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        """`headers`: names in lower case; the values of a repeated one are joined by ", "."""
        self.status = status
        self.headers = headers
        encoding = headers.get("content-encoding", "").strip().lower()
        self._is_compressed = encoding not in {"", "identity"}
        self._decompressor: Decompressor | None = None
        self._unread = b""  # of the last raw read
        self._busy_since_s = time.monotonic()  # when the event loop last ran other tasks

    @abstractmethod
    async def _read_raw(self, timeout_s: float) -> bytes: ...

    @abstractmethod
    def close(self) -> None:
        """Abort the response unless it was read to its end; idempotent."""

    async def read(self, timeout_s: float) -> bytes:
        """The next bytes of the body, at most MAX_READ_BYTES, b"" at its end.

        Raises ReplyTimedOut or ConnectionBroken.
        """
        if self._is_compressed:
            return await self._read_decompressed(timeout_s)
        if time.monotonic() - self._busy_since_s > MAX_BUSY_S:
            await self._yield()
        data = self._unread or await self._read_raw(timeout_s)
        return data if len(data) <= MAX_READ_BYTES and not self._unread else self._cut(data)

    async def _read_decompressed(self, timeout_s: float) -> bytes:
        deadline_s = time.monotonic() + timeout_s
        try:
            if self._decompressor is None:
                self._decompressor = Decompressor(self.headers["content-encoding"])
            while True:
                if time.monotonic() - self._busy_since_s > MAX_BUSY_S:
                    await self._yield()
                if plain := self._decompressor.take():
                    return plain
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:  # it may never have to wait: compressed data can decompress to nothing
                    raise ReplyTimedOut
                data = self._cut(self._unread or await self._read_raw(left_s))
                if not data:
                    self._decompressor.close()
                    return b""
                self._decompressor.feed(data)
        except DecompressionError as error:
            kind = AnswerTooLong if isinstance(error, RatioExceeded) else ConnectionBroken
            raise kind(str(error)) from error

    def _cut(self, data: bytes) -> bytes:
        """The first MAX_READ_BYTES; the rest is for the next read."""
        self._unread = data[MAX_READ_BYTES:]
        return data[:MAX_READ_BYTES]

    async def _yield(self) -> None:
        """A fast upstream always has bytes ready: reading them must not keep other tasks from running."""
        await asyncio.sleep(0)
        self._busy_since_s = time.monotonic()

    async def read_all(self, timeout_s: float, max_bytes: int) -> bytes:
        """The whole body; `timeout_s` holds per read.

        Raises AnswerTooLong when it is longer than `max_bytes`, else as `read`.
        """
        parts: list[bytes] = []
        size = 0
        try:
            while data := await self.read(timeout_s):
                size += len(data)
                if size > max_bytes:
                    raise AnswerTooLong(f"the answer is longer than {max_bytes} bytes")
                parts.append(data)
        except BaseException:
            self.close()
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)


class UpstreamTransport(Protocol):
    """Pooled connections to one base URL. No redirects, no cookies."""

    def post(self, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Awaitable[Reply]:
        """POST `body` and return once the response's headers are there, within `timeout_s` of sending.

        Raises TransportError; ValueError for a header that HTTP cannot carry.
        """
        ...

    async def close(self) -> None:
        """Close idle connections; those in use close with their replies."""
        ...
