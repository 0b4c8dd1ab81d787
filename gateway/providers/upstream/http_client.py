"""The HTTP/1.1 client of the hot path: pooled keep-alive connections, each phase under its own time limit.

Chosen by measurement (`tests/bench/clients.py`). It does what calling an API needs and no more: GET and POST
to one host, TLS, flow control, gzip when it comes; no redirects, no cookies, no HTTP proxies.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

from gateway.providers.upstream.http_connection import Connection, ConnectionBroken

MAX_IDLE_CONNECTIONS = 256
IDLE_EXPIRY_S = 50.0
"""Below the 60 s after which common servers and load balancers close an idle connection."""
MAX_INFLATED_BYTES = 1024 * 1024
"""Of one read: what is left comes with the next, so a compression bomb costs this much memory."""


class ConnectFailed(Exception):
    """No connection: name not found, refused, unreachable, TLS failed. The message says which."""


class ConnectTimedOut(Exception):
    """No connection within the connect limit."""


class Reply:
    """A response whose headers have come. Read it to its end, or `close()` it, which drops the connection."""

    __slots__ = ("_client", "_connection", "_done", "_inflate", "headers", "status")

    def __init__(self, client: HttpClient, connection: Connection) -> None:
        self._client = client
        self._connection = connection
        self._done = False
        self._inflate = _inflater(connection.headers.get("content-encoding", ""))
        self.status = connection.status
        self.headers = connection.headers

    async def read(self, idle_timeout_s: float) -> bytes:
        """Return the next bytes of the body, b"" at its end. Raises ReplyTimedOut, ConnectionBroken."""
        if self._inflate is not None:
            return await self._read_inflated(self._inflate, idle_timeout_s)
        return await self._read_raw(idle_timeout_s)

    async def _read_raw(self, idle_timeout_s: float) -> bytes:
        if self._done:
            return b""
        connection = self._connection
        while not (data := connection.take()):
            if connection.complete:
                self._done = True
                self._client._release(connection)
                return b""
            await connection.wait(idle_timeout_s)
        return data

    async def _read_inflated(self, inflate: zlib._Decompress, idle_timeout_s: float) -> bytes:
        while True:
            data = inflate.unconsumed_tail or await self._read_raw(idle_timeout_s)
            try:
                plain = inflate.decompress(data, MAX_INFLATED_BYTES)
            except zlib.error as error:
                raise ConnectionBroken("the upstream's compressed answer is broken") from error
            if plain or not data:
                return plain

    async def read_all(self, idle_timeout_s: float, max_bytes: int) -> bytes:
        """Return the whole body; ConnectionBroken when it is longer than `max_bytes`."""
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

    def close(self) -> None:
        """Drop the connection unless the response was read to its end; idempotent."""
        if not self._done:
            self._done = True
            self._connection.abort()


def _inflater(encoding: str) -> zlib._Decompress | None:
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return None
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return zlib.decompressobj(wbits=47)  # 47: gzip or zlib, whichever the header says
    raise ConnectionBroken(f"the upstream answered in the encoding {encoding!r} although told `identity`")


class HttpClient:
    """Connections to one base URL, such as https://host/v1."""

    def __init__(self, base_url: str, *, connect_timeout_s: float, headers: Mapping[str, str]) -> None:
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._head = encode_headers({"host": parts.netloc, "accept-encoding": "identity", **headers})
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[Connection] = deque()
        self._loop = asyncio.get_running_loop()

    async def get(self, path: str, reply_timeout_s: float) -> Reply:
        """As `post`, without a body."""
        data = b"GET %b%b HTTP/1.1\r\n%b\r\n" % (self._path.encode(), path.encode(), self._head)
        return await self._exchange(data, reply_timeout_s)

    async def post(self, path: str, headers: bytes, body: bytes, reply_timeout_s: float) -> Reply:
        """Send a request and return once its headers have come. `headers` as `encode_headers` makes them.

        Raises ConnectFailed, ConnectTimedOut, ReplyTimedOut, ConnectionBroken.
        """
        data = b"POST %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
            self._path.encode(),
            path.encode(),
            self._head,
            headers,
            len(body),
            body,
        )
        return await self._exchange(data, reply_timeout_s)

    async def _exchange(self, data: bytes, reply_timeout_s: float) -> Reply:
        while True:
            connection = self._idle_connection()
            is_reused = connection is not None
            if connection is None:
                connection = await self._connect()
            try:
                connection.send(data)
                while not connection.has_headers:
                    await connection.wait(reply_timeout_s)
                return Reply(self, connection)
            except ConnectionBroken:
                # The other side may close an idle connection just as we write: nothing was answered,
                # so nothing was begun there. A fresh connection that breaks is an error.
                if not is_reused or connection.got_bytes:
                    raise
            except BaseException:
                connection.abort()
                raise

    async def close(self) -> None:
        """Close the idle connections; those in use close when their replies do."""
        while self._idle:
            self._idle.pop().abort()

    def _idle_connection(self) -> Connection | None:
        oldest_s = self._loop.time() - IDLE_EXPIRY_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed and connection.released_s >= oldest_s:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        connecting = self._loop.create_connection(Connection, self._host, self._port, ssl=self._tls)
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await connecting
        except TimeoutError as error:
            raise ConnectTimedOut(f"no connection within {self._connect_timeout_s:g} s") from error
        except ssl.SSLError as error:
            raise ConnectFailed(f"TLS failed: {error.reason or type(error).__name__}") from error
        except OSError as error:
            raise ConnectFailed(error.strerror or type(error).__name__) from error
        return connection

    def _release(self, connection: Connection) -> None:
        if not connection.reusable or connection.closed or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.abort()
            return
        connection.rest()
        connection.released_s = self._loop.time()
        self._idle.append(connection)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Return header lines; ValueError for a value that would break out of its line."""
    lines = []
    for name, value in headers.items():
        if not value.isprintable() or not value.isascii():
            raise ValueError(f"header {name!r} holds a character that HTTP headers cannot carry")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("ascii")
