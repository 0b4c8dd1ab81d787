"""The seam between upstream providers and HTTP: what a transport does, and how it fails.

Two transports implement it: `http_client` (HTTP/1.1, the fast path) and `httpx_transport` (proxies, custom CA
bundles, HTTP/2, Unix sockets).
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

MAX_INFLATED_BYTES = 1024 * 1024
"""Decompressed bytes per read; the rest comes with the next, so a compression bomb costs this much memory."""


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


class ReplyTimedOut(TransportError):
    """The upstream is connected but sent nothing within the time limit."""


class Reply(ABC):
    """A response whose headers have arrived. Read it to its end, or `close()` it, which aborts it."""

    __slots__ = ("_inflater", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        """`headers`: names in lower case. Raises ConnectionBroken for an unknown content encoding."""
        self.status = status
        self.headers = headers
        self._inflater = _inflater(headers.get("content-encoding", ""))

    @abstractmethod
    async def _read_raw(self, idle_timeout_s: float) -> bytes: ...

    @abstractmethod
    def close(self) -> None:
        """Abort the response unless it was read to its end; idempotent."""

    async def read(self, idle_timeout_s: float) -> bytes:
        """The next bytes of the body, b"" at its end. Raises ReplyTimedOut or ConnectionBroken."""
        inflater = self._inflater
        if inflater is None:
            return await self._read_raw(idle_timeout_s)
        while True:
            data = inflater.unconsumed_tail or await self._read_raw(idle_timeout_s)
            try:
                plain = inflater.decompress(data, MAX_INFLATED_BYTES)
            except zlib.error as error:
                raise ConnectionBroken("the upstream's compressed answer is broken") from error
            if plain or not data:
                return plain

    async def read_all(self, idle_timeout_s: float, max_bytes: int) -> bytes:
        """The whole body. Raises ConnectionBroken when it is longer than `max_bytes`, else as `read`."""
        parts: list[bytes] = []
        size = 0
        try:
            while data := await self.read(idle_timeout_s):
                size += len(data)
                if size > max_bytes:
                    raise ConnectionBroken(f"the upstream's answer is longer than {max_bytes} bytes")
                parts.append(data)
        except BaseException:
            self.close()
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)


class UpstreamTransport(Protocol):
    """Pooled connections to one base URL. No redirects, no cookies."""

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        """POST `body` and return once the response's headers are there, within `timeout_s` of sending.

        Raises TransportError; ValueError for a header that HTTP cannot carry.
        """
        ...

    async def close(self) -> None:
        """Close idle connections; those in use close with their replies."""
        ...


def _inflater(encoding: str) -> zlib._Decompress | None:
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return None
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return zlib.decompressobj(wbits=47)  # 47: gzip or zlib, detected from the header
    raise ConnectionBroken(f"the upstream answered in the encoding {encoding!r} although told `identity`")
