"""The transport for what `http_client` does not speak: proxies, custom CA bundles, HTTP/2, Unix sockets.

httpx2 does the work. It costs several times the processor time per request, so it serves only upstreams that
need it. With HTTP/2, httpx cannot cancel one stream: the upstream generates an abandoned answer to its end.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping

import httpx2

from gateway.providers.upstream.httpx_progress import RequestProgress, WatchedBackend
from gateway.providers.upstream.tls import tls_context
from gateway.providers.upstream.transport import (
    ConnectFailed,
    ConnectionBroken,
    ConnectTimedOut,
    NetworkOptions,
    Reply,
    ReplyTimedOut,
    TransportError,
)

MAX_IDLE_CONNECTIONS = 256
IDLE_EXPIRY_S = 50.0
"""Below the 60 s after which common servers and load balancers close an idle connection."""


class HttpxReply(Reply):
    """A streamed httpx response."""

    __slots__ = ("_closing", "_pieces", "_response")

    def __init__(self, response: httpx2.Response, closing: set[asyncio.Task[None]]) -> None:
        """`closing` keeps the tasks that close responses."""
        super().__init__(response.status_code, dict(response.headers))
        self._response = response
        self._pieces: AsyncIterator[bytes] = response.aiter_raw()
        self._closing = closing

    async def _read_raw(self, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self._pieces, b"")
        except TimeoutError as error:
            raise ReplyTimedOut from error
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise ConnectionBroken(_broken(error)) from error

    def close(self) -> None:
        """Abort the response; idempotent."""
        if not self._response.is_closed:
            # In a task of its own: a second cancellation in the middle of it would leak the connection.
            task = asyncio.create_task(self._response.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class HttpxTransport:
    """An UpstreamTransport over httpx: HTTP/2, proxies, Unix sockets."""

    def __init__(
        self, base_url: str, options: NetworkOptions, *, connect_timeout_s: float, headers: Mapping[str, str]
    ) -> None:
        """Raises SettingsError when the CA bundle cannot be read."""
        tls = tls_context(options.ca_bundle)
        transport = httpx2.AsyncHTTPTransport(
            verify=tls,
            http2=options.http2,
            proxy=proxy_with_tls(options.proxy, tls),
            uds=options.unix_socket or None,
            limits=httpx2.Limits(
                max_keepalive_connections=MAX_IDLE_CONNECTIONS, keepalive_expiry=IDLE_EXPIRY_S
            ),
        )
        # A public parameter of httpcore's pools, which httpx does not pass on.
        transport._pool._network_backend = WatchedBackend()
        self._client = httpx2.AsyncClient(
            base_url=base_url,
            headers={"accept-encoding": "identity", **headers},
            transport=transport,
            trust_env=False,
            # httpx's read timeout is per socket read and fixed per request; ours are set around the calls.
            timeout=httpx2.Timeout(None, connect=connect_timeout_s),
        )
        self._connect_timeout_s = connect_timeout_s
        self._closing: set[asyncio.Task[None]] = set()

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        """POST `body`, again where a connection was just closed; return once the headers are there."""
        try:
            return await self._send(path, headers, body, timeout_s)
        except _StaleConnection:
            return await self._send(path, headers, body, timeout_s)

    async def _send(self, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        limit = asyncio.timeout(self._connect_timeout_s + timeout_s)
        progress = RequestProgress(lambda: limit.reschedule(asyncio.get_running_loop().time() + timeout_s))
        request = self._client.build_request(
            "POST", path, headers=headers, content=body, extensions={"trace": progress.trace}
        )
        try:
            async with limit:
                with progress:
                    response = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, OSError) as error:
            failed = transport_error(error, self._connect_timeout_s)
            if isinstance(failed, ConnectionBroken) and progress.is_stale(error):
                failed = _StaleConnection(str(failed))
            raise failed from error
        reply = HttpxReply(response, self._closing)
        if progress.is_surplus:
            reply.close()
            raise _StaleConnection("the upstream sent an answer that was not asked for")
        return reply

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._client.aclose()


class _StaleConnection(ConnectionBroken):
    """A reused connection broke before anything was answered: the upstream may have closed it while idle.

    Or what it holds is not the answer to this request, but a surplus of the one before.
    """


def proxy_with_tls(url: str, tls: ssl.SSLContext) -> httpx2.Proxy | None:
    """The proxy at `url`, None when it is ""; `tls` is for a proxy that is reached over TLS."""
    if not url:
        return None
    return httpx2.Proxy(url, ssl_context=tls if url.startswith("https://") else None)


def transport_error(error: Exception, connect_timeout_s: float) -> TransportError:
    """What an error of httpx, or a timeout around it, means before there is a response."""
    if isinstance(error, TimeoutError):
        return ReplyTimedOut()
    if isinstance(error, httpx2.ConnectTimeout):
        return ConnectTimedOut(f"no connection within {connect_timeout_s:g} s")
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return ConnectFailed(_reason(error))
    return ConnectionBroken(_broken(error))


def _broken(error: Exception) -> str:
    return f"the connection broke before the answer was complete ({type(error).__name__})"


def _reason(error: BaseException) -> str:
    """Why there is no connection. Not httpx's own text, which may hold the proxy's words."""
    if isinstance(error, httpx2.ProxyError):
        status = str(error).partition(" ")[0]
        return f"the proxy refused it ({status})" if status.isdigit() else "the proxy failed"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or type(cause).__name__}"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
