"""The HTTP/1.1 transport of the hot path: pooled keep-alive connections, each phase under its own time limit.

Half the processor time per request of aiohttp (`python -m tests.bench.clients` measures it). It does what
calling an API needs: POST to one host, TLS with the system's CA store, flow control, gzip when it comes. For
proxies, custom CA bundles, HTTP/2 and Unix sockets there is `httpx_transport`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from urllib.parse import urlsplit

from gateway.providers.upstream.http_connection import Connection
from gateway.providers.upstream.tls import tls_context
from gateway.providers.upstream.transport import ConnectFailed, ConnectionBroken, ConnectTimedOut, Reply

MAX_IDLE_CONNECTIONS = 256
IDLE_EXPIRY_S = 50.0
"""Below the 60 s after which common servers and load balancers close an idle connection."""


class HttpReply(Reply):
    """A response on a pooled connection, which returns to the pool when it was read to its end."""

    __slots__ = ("_client", "_connection", "_done")

    def __init__(self, client: HttpClient, connection: Connection) -> None:
        super().__init__(connection.status, connection.headers)
        self._client = client
        self._connection = connection
        self._done = False

    async def _read_raw(self, timeout_s: float) -> bytes:
        if self._done:
            return b""
        connection = self._connection
        while not (data := connection.take()):
            if connection.complete:
                self._done = True
                self._client.release(connection)
                return b""
            await connection.wait(timeout_s)
            self._busy_since_s = time.monotonic()
        return data

    def close(self) -> None:
        """Drop the connection unless the response was read to its end; idempotent."""
        if not self._done:
            self._done = True
            self._connection.abort()


class HttpClient:
    """Connections to one base URL, such as https://host/v1."""

    def __init__(self, base_url: str, *, connect_timeout_s: float, headers: Mapping[str, str]) -> None:
        parts = urlsplit(base_url)
        self._host = parts.hostname or ""
        self._tls = tls_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._head = encode_headers({"host": parts.netloc, "accept-encoding": "identity", **headers})
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[Connection] = deque()
        self._loop = asyncio.get_running_loop()

    def post(self, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Awaitable[Reply]:
        """POST `body`, again where a connection was just closed; return once the headers are there."""
        data = b"POST %b%b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
            self._path.encode(),
            path.encode(),
            self._head,
            encode_headers(headers),
            len(body),
            body,
        )
        return self._exchange(data, timeout_s)

    async def _exchange(self, data: bytes, timeout_s: float) -> Reply:
        while True:
            connection = self._idle_connection()
            is_reused = connection is not None
            if connection is None:
                connection = await self._connect()
            try:
                connection.send(data)
                while not connection.has_headers:
                    await connection.wait(timeout_s)
                return HttpReply(self, connection)
            except ConnectionBroken:
                # The upstream may close an idle connection just as we write to it. Nothing was answered, so
                # nothing was started there. A new connection that breaks is an error.
                if not is_reused or connection.got_bytes:
                    raise
            except BaseException:
                connection.abort()
                raise

    async def close(self) -> None:
        """Close idle connections; those in use close with their replies."""
        while self._idle:
            self._idle.pop().abort()

    def _idle_connection(self) -> Connection | None:
        oldest_s = self._loop.time() - IDLE_EXPIRY_S
        while self._idle:
            connection = self._idle.pop()
            is_fresh = not connection.closed and connection.released_s >= oldest_s
            if is_fresh and not connection.has_unread:
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
        except (UnicodeError, OverflowError) as error:  # the name, the port
            raise ConnectFailed(type(error).__name__) from error
        return connection

    def release(self, connection: Connection) -> None:
        """Take back a connection whose response was read to its end."""
        if not connection.reusable or connection.closed or len(self._idle) >= MAX_IDLE_CONNECTIONS:
            connection.abort()
            return
        connection.stop_timer()
        connection.released_s = self._loop.time()
        self._idle.append(connection)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Header lines. Raises ValueError for a value that would break out of its line."""
    lines = []
    for name, value in headers.items():
        if not value.isprintable() or not value.isascii():
            raise ValueError(f"header {name!r} holds a character that HTTP headers cannot carry")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode("ascii")
