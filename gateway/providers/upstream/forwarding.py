"""Forwards requests to an upstream's API as they are: bodies and answers are streams of bytes.

Each request has a connection of its own: one that the upstream closes while idle cannot fail a body that is
sent only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import httpx2

from gateway.errors import NotFound
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.httpx_transport import HttpxReply, proxy_with_tls, transport_error
from gateway.providers.upstream.openai import key_headers
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.tls import tls_context
from policies.upstream import UpstreamModel

SENT_HEADERS = ("accept", "content-length", "content-type", "openai-beta", "range")
"""Headers of the client's request."""
RETURNED_HEADERS = ("accept-ranges", "content-disposition", "content-length", "content-range", "content-type")
"""Headers of the upstream's answer."""


class Forwarder:
    """Forwards to the upstream of one model."""

    def __init__(self, name: str, upstream: UpstreamModel, api_key: str | None, proxy: str) -> None:
        """`name` is the model's. Raises SettingsError when the CA bundle cannot be read."""
        self.name = name
        self.upstream = upstream
        self._redactor = Redactor.of(api_key, proxy)
        tls = tls_context(upstream.ca_bundle or "")
        self._client = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(
                verify=tls,
                http2=upstream.http2,
                proxy=proxy_with_tls(proxy, tls),
                uds=upstream.unix_socket or None,
                limits=httpx2.Limits(max_keepalive_connections=0),
            ),
            headers={"user-agent": "penstock", **key_headers(upstream, api_key)},
            trust_env=False,
            timeout=httpx2.Timeout(None, connect=upstream.connect_timeout_s),
        )
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Nothing to start: connections are opened on demand."""

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._client.aclose()

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: AsyncIterator[bytes] | None
    ) -> HttpxReply:
        """The answer, of a status below 300, to a path and query below the base_url. Raises ApiError."""
        url = self.upstream.base_url.rstrip("/") + path
        headers = {"accept-encoding": "identity", **headers}
        try:
            request = self._client.build_request(method, url, headers=headers, content=body)
        except httpx2.InvalidURL:
            raise NotFound("The path or query is too long to be passed on.", code="unknown_url") from None
        try:
            async with asyncio.timeout(self.upstream.total_timeout_s):
                response = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, OSError) as error:
            failed = transport_error(error, self.upstream.connect_timeout_s)
            raise upstream_errors.of_transport(failed, self.name, "total") from error
        reply = HttpxReply(response, self._closing)
        if reply.status >= 300:
            try:
                found = await self.read_all(reply)
            finally:
                reply.close()
            raise upstream_errors.of_status(reply.status, reply.headers, found, self.name, self._redactor)
        return reply

    async def read_all(self, reply: HttpxReply) -> bytes:
        """The body of an error. Raises ApiError."""
        try:
            return await reply.read_all(self.upstream.idle_timeout_s, upstream_errors.MAX_ERROR_BYTES)
        except upstream_errors.TRANSPORT_ERRORS as error:
            raise upstream_errors.of_transport(error, self.name, "idle") from error

    def returned_headers(self, reply: HttpxReply) -> dict[str, str]:
        """The headers for the client, of the body as `pieces` gives it."""
        headers = {name: reply.headers[name] for name in RETURNED_HEADERS if name in reply.headers}
        if "content-encoding" in reply.headers:
            headers.pop("content-length", None)
        return headers

    async def pieces(self, reply: HttpxReply) -> AsyncGenerator[bytes, None]:
        """The answer's bytes as they arrive. Raises ApiError."""
        try:
            while piece := await reply.read(self.upstream.idle_timeout_s):
                yield piece
        except upstream_errors.TRANSPORT_ERRORS as error:
            raise upstream_errors.of_transport(error, self.name, "idle") from error
        finally:
            reply.close()
