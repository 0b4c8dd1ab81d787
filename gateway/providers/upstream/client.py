"""What the providers of all upstream APIs share: keys, proxies, time limits, errors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType

from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.open_transport import open_transport
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.transport import NetworkOptions, Reply
from policies.upstream import UpstreamModel

MAX_ANSWER_BYTES = 64 * 1024 * 1024
_FIRST_TOKEN_S = 120.0
"""A stream's, where the policies set no `first_token_timeout_s`."""

_TRACE_HEADERS = ("traceparent", "tracestate")


class UpstreamClient:
    """Sends one model's requests. Of the caller's headers, only trace and request id are forwarded."""

    def __init__(
        self,
        name: str,
        upstream: UpstreamModel,
        key_headers: Mapping[str, str],
        api_key: str | None,
        proxy: str,
    ) -> None:
        """Create inside a running event loop. `name` is the model's name here, `proxy` a URL.

        `key_headers` authenticate with `api_key`. Raises SettingsError when the CA bundle cannot be read.
        """
        self.name = name
        self.upstream = upstream
        self.redactor = Redactor.of(api_key, proxy)
        headers = {"content-type": "application/json", "user-agent": "penstock", **key_headers}
        self._transport = open_transport(
            upstream.base_url,
            NetworkOptions(
                proxy=proxy,
                ca_bundle=upstream.ca_bundle or "",
                http2=upstream.http2,
                unix_socket=upstream.unix_socket or "",
            ),
            connect_timeout_s=upstream.connect_timeout_s,
            headers=headers,
        )

    async def close(self) -> None:
        """Close the idle connections."""
        await self._transport.close()

    async def post(
        self,
        path: str,
        body: bytes,
        request_id: str,
        trace: Mapping[str, str],
        *,
        is_stream: bool,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Reply, float]:
        """The reply, of status 200, and how long it may take until its first events. Raises ApiError.

        `headers`: of this request, besides those of all.
        """
        started_s = time.monotonic()
        # A whole answer's headers arrive when it is complete: a default must not cut it off before its total.
        first_s, total_s = self.upstream.first_token_timeout_s, self.upstream.total_timeout_s
        limit_s = first_s or (_FIRST_TOKEN_S if is_stream else total_s)
        sent = {
            "accept": "text/event-stream" if is_stream else "application/json",
            "x-request-id": request_id,
        }
        sent.update((name, trace[name]) for name in _TRACE_HEADERS if trace.get(name))
        sent.update(headers)
        try:
            reply = await self._transport.post(path, sent, body, limit_s)
        except upstream_errors.TRANSPORT_ERRORS as error:
            waiting_for = "first token" if is_stream or limit_s == first_s else "total"
            raise upstream_errors.of_transport(error, self.name, waiting_for) from error
        if reply.status != 200:
            try:
                found = await reply.read_all(self.upstream.idle_timeout_s, upstream_errors.MAX_ERROR_BYTES)
            except upstream_errors.TRANSPORT_ERRORS:  # the status says enough
                found = b""
            raise upstream_errors.of_status(reply.status, reply.headers, found, self.name, self.redactor)
        return reply, limit_s - (time.monotonic() - started_s)

    async def read_all(self, reply: Reply, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
        """The whole body. Raises ApiError."""
        try:
            return await reply.read_all(self.upstream.idle_timeout_s, max_bytes)
        except upstream_errors.TRANSPORT_ERRORS as error:
            raise upstream_errors.of_transport(error, self.name, "idle") from error


def is_event_stream(reply: Reply) -> bool:
    """Whether the reply is one of server-sent events."""
    return media_type(reply) == "text/event-stream"


def media_type(reply: Reply) -> str:
    """The reply's content type without parameters."""
    return reply.headers.get("content-type", "").partition(";")[0].strip().lower()
