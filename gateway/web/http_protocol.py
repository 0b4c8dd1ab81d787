"""uvicorn's HTTP/1.1, with three habits changed: errors in OpenAI's shape, bounded heads, no upgrades."""

from __future__ import annotations

import re

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import ApiError, InvalidRequest, error_body

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers. Nothing else bounds them, and they are read before anybody is asked for a key."""

LINGER_S = 1.0
"""How long a client that was refused may go on sending into the void."""

_UPGRADE = re.compile(rb"(\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
_MALFORMED = InvalidRequest(
    "What arrived is not a valid HTTP/1.1 request: send one, without TLS.", code="invalid_http"
)
_HEAD_TOO_LARGE = InvalidRequest(
    f"The request's headers are larger than {MAX_HEAD_BYTES} bytes: send fewer or shorter ones.",
    status=431,
    code="headers_too_large",
)


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    _head_bytes: int | None = 0  # of the head that is being read; None while a body is
    _error: ApiError = _MALFORMED
    _has_refused = False

    def data_received(self, data: bytes) -> None:
        """Count and clean what belongs to a head, and parse."""
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
        """The head is whole: begin to answer, unless it is too large."""
        self._head_bytes = None
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._error = _HEAD_TOO_LARGE
            raise HttpParserError("head too large")  # uvicorn calls send_400_response
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next bytes begin a head."""
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong and hang up; when an answer is already on its way, only hang up."""
        if self._has_refused or self.transport.is_closing():
            return
        is_answering = getattr(self.cycle, "response_started", False) and not self.cycle.response_complete
        if is_answering:
            self.transport.close()
            return
        self._has_refused = True
        body = error_body(self._error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[self._error.status] + head % len(body) + body)
        # Closing while the client still sends would reset the connection and lose the answer.
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)


def _without_upgrade(data: bytes) -> bytes:
    """The head without the offer to change protocols, which RFC 9110 lets a server ignore.

    Java's HttpClient and `curl --http2` offer h2c with every first request; the parser would then stop
    before the body. The replacement is as long as the original, so that nothing moves.
    """
    if b"pgrade" not in data and b"PGRADE" not in data:
        return data
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(rb"\1ignored", head) + end + rest
