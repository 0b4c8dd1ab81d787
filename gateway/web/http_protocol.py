"""uvicorn's HTTP/1.1 protocol with three changes: errors in OpenAI's shape, bounded headers, no upgrades."""

from __future__ import annotations

import re

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import ApiError, InvalidRequest, error_body

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together. uvicorn has no limit, and they arrive before authentication."""

LINGER_S = 1.0
"""How long the connection of a refused client stays open after our answer (lingering close)."""

_UPGRADE = re.compile(rb"(\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
_MALFORMED = InvalidRequest(
    "The bytes received are not a valid HTTP/1.1 request: send one, without TLS.", code="invalid_http"
)
_HEAD_TOO_LARGE = InvalidRequest(
    f"The request's headers are larger than {MAX_HEAD_BYTES} bytes: send fewer or shorter ones.",
    status=431,
    code="headers_too_large",
)


class HttpProtocol(HttpToolsProtocol):
    """One client connection."""

    _head_bytes: int | None = 0  # of the head being received; None while receiving a body
    _error: ApiError = _MALFORMED
    _has_refused = False

    def data_received(self, data: bytes) -> None:
        """Parse; of a head, count the bytes and remove an `Upgrade` first."""
        if self._has_refused:
            return
        if self._head_bytes is not None:
            data = _without_upgrade(data)
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > MAX_HEAD_BYTES:
            self._error = _HEAD_TOO_LARGE
            self.send_400_response("")

    def on_headers_complete(self) -> None:
        """Start the handler, unless the head is too large."""
        self._head_bytes = None
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._error = _HEAD_TOO_LARGE
            raise HttpParserError("head too large")  # uvicorn calls send_400_response
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Count the bytes of the next head."""
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Send the error and close; when a response has already begun, only close."""
        if self._has_refused or self.transport.is_closing():
            return
        is_responding = getattr(self.cycle, "response_started", False) and not self.cycle.response_complete
        if is_responding:
            self.transport.close()
            return
        self._has_refused = True
        body = error_body(self._error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[self._error.status] + head % len(body) + body)
        # Closing while the client still sends would reset the connection (RST) and lose the error.
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def _without_upgrade(data: bytes) -> bytes:
    """Rename the `Upgrade` header, which RFC 9110 (7.8) lets a server ignore.

    Java's HttpClient and `curl --http2` offer h2c with every first request; the parser would then stop
    before the body. The replacement has the same length.
    """
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(rb"\1ignored", head) + end + rest
