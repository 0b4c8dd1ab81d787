"""One HTTP request and its response: JSON body in, body or SSE stream out, errors in the API's format."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncGenerator, Mapping
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from gateway.auth import InternalCaller
from gateway.errors import ApiError, BodyTooLarge, ClientGone, InvalidRequest
from gateway.telemetry.request import RequestTelemetry
from gateway.web.error_format import OPENAI_ERRORS, ErrorFormat

INTERNAL_CALLER = "penstock.internal_caller"
"""Key in a scope of the InternalCaller of a request that the gateway makes itself; clients cannot set it."""

GOES_ON = "penstock.goes_on"
"""Key in a scope of a stream without end: its handler sets ASKS, and finds BEGUN in the current version."""
ASKS, BEGUN = "asks", "begun"

JSON = b"application/json"
SSE = b"text/event-stream; charset=utf-8"

# Neither what a URL's path loses, nor a list below /admin/requests: operators find and cancel requests by id.
_REQUEST_ID = re.compile(rb"(?!\.{1,2}\Z|in-flight\Z)[A-Za-z0-9._:/+=@-]{1,128}\Z")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")
_SSE_HEADERS = [(b"content-type", SSE), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def request_id_of(scope: Scope) -> str:
    """The caller's `x-request-id` when it is safe to log, otherwise a new one."""
    given = header(scope, b"x-request-id")
    if given and _REQUEST_ID.match(given):
        return given.decode("ascii")
    return "req_" + os.urandom(16).hex()


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of this (lower-case) name; b"" when there is none."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return b""


class HttpCall:
    """What a handler gets. `status` is what has been sent, 0 before that."""

    __slots__ = (
        "_fixed_headers",
        "_headers",
        "_send",
        "error_format",
        "error_headers",
        "is_started",
        "is_stream",
        "receive",
        "request_id",
        "scope",
        "status",
        "telemetry",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        telemetry: RequestTelemetry,
        fixed_headers: list[tuple[bytes, bytes]],
        error_format: ErrorFormat = OPENAI_ERRORS,
    ) -> None:
        """`fixed_headers` are sent with every response.

        A handler may replace `error_format`, and set `error_headers` for errors beside their own.
        """
        self.scope = scope
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of each name
        self.receive = receive
        self.telemetry = telemetry
        self.request_id = request_id_of(scope)
        self.status = 0
        self.is_started = self.is_stream = scope.get(GOES_ON) == BEGUN
        self._send = send
        self.error_format = error_format
        self.error_headers: Mapping[str, str] = {}
        request_id = self.request_id.encode("ascii")
        self._fixed_headers = [(b"x-request-id", request_id), *fixed_headers]
        if error_format.request_id_header:
            self._fixed_headers.append((error_format.request_id_header, request_id))

    @property
    def authorization(self) -> str:
        """The `Authorization` header, else the key of `x-api-key` as its bearer; "" when there is neither."""
        authorization = self._headers.get(b"authorization", b"").decode("latin-1")
        api_key = self._headers.get(b"x-api-key", b"").decode("latin-1")
        return authorization if authorization or not api_key else f"Bearer {api_key}"

    @property
    def internal_caller(self) -> InternalCaller | None:
        """For whom the gateway makes this request itself; None for a client's."""
        return self.scope.get(INTERNAL_CALLER)

    @property
    def cache_headers(self) -> tuple[str, str]:
        """The values of `x-penstock-cache` and `cache-control`; "" where one is missing."""
        own, standard = self._headers.get(b"x-penstock-cache", b""), self._headers.get(b"cache-control", b"")
        return own.decode("latin-1"), standard.decode("latin-1")

    def read_header(self, name: str) -> str:
        """The first header of this (lower-case) name; "" when there is none."""
        return self._headers.get(name.encode("ascii"), b"").decode("latin-1")

    @property
    def path_id(self) -> str:
        """The path's parameter `id`."""
        found: str = self.scope["path_params"]["id"]
        return found

    @property
    def query(self) -> dict[str, str]:
        """The query string's parameters; of a repeated one the last."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    async def read_json_bytes(self, max_bytes: int) -> bytes:
        """Read the request's body, once.

        Raises InvalidRequest (415: not JSON), BodyTooLarge, or ClientGone when the client disconnects.
        """
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > max_bytes:
            raise _too_large(max_bytes)
        self.check_media_type()
        body: bytes | bytearray = b""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("The client left before its request was complete.")
            piece: bytes = message.get("body", b"")
            if len(body) + len(piece) > max_bytes:
                raise _too_large(max_bytes)
            if not message.get("more_body", False):
                return bytes(body + piece) if body else piece
            if not body:
                body = bytearray()  # not a list: pieces may be tiny
            body += piece

    async def body_pieces(self, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """The request's body as it arrives, once. Raises BodyTooLarge, or ClientGone."""
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > max_bytes:
            raise _too_large(max_bytes)
        num_bytes = 0
        more = True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("The client left before its request was complete.")
            piece: bytes = message.get("body", b"")
            num_bytes += len(piece)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            more = message.get("more_body", False)
            yield piece

    def check_media_type(self) -> None:
        """Raise InvalidRequest (415) unless the request declares JSON."""
        # CSRF: browsers send text/plain, forms and untyped bodies to any origin without a CORS preflight.
        # JSON needs one, which protects a gateway without keys on loopback.
        kind = self._headers.get(b"content-type", b"").split(b";", 1)[0].strip().lower()
        if kind != JSON:
            raise InvalidRequest(
                f"Unsupported content type {kind.decode('latin-1')[:64]!r}: send 'application/json'.",
                status=415,
                code="unsupported_media_type",
            )
        if self._headers.get(b"content-encoding", b"").lower() not in (b"", b"identity"):
            raise InvalidRequest(
                "Compressed request bodies are not supported: send it without Content-Encoding.",
                status=415,
                code="unsupported_media_type",
            )

    async def respond(
        self,
        body: bytes,
        media_type: bytes = JSON,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a whole response."""
        length = b"%d" % len(body)
        fields = [*self._fixed_headers, (b"content-type", media_type), (b"content-length", length)]
        await self._start(status, fields, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def respond_known(
        self, body: bytes, etag: str, media_type: bytes = JSON, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole response, without its body where the client has the one of this ETag."""
        is_known = etag in [each.strip() for each in self.read_header("if-none-match").split(",")]
        status, headers = 304 if is_known else 200, {**(headers or {}), "etag": etag}
        await self.respond(b"" if is_known else body, media_type, status=status, headers=headers)

    async def start_stream(self, headers: Mapping[str, str] | None = None) -> None:
        """Begin a stream of server-sent events."""
        self.is_stream = True
        await self._start(200, [*self._fixed_headers, *_SSE_HEADERS], headers)

    async def start_body(self, headers: Mapping[str, str], status: int = 200) -> None:
        """Begin a response whose body is sent in pieces; `headers` say what it is."""
        self.is_stream = headers.get("content-type", "").startswith("text/event-stream")
        await self._start(status, [*self._fixed_headers], headers)

    async def write(self, piece: bytes) -> None:
        """Send a piece of the stream; waits while the client is slow to read (backpressure)."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_stream(self, piece: bytes = b"") -> None:
        """Send the last piece."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Send an error: as the response, or as the last event of a stream that has begun."""
        if isinstance(error, ClientGone):
            self.status = error.status
        elif not self.is_started:
            body = self.error_format.body(error, self.request_id)
            await self.respond(body, status=error.status, headers={**self.error_headers, **error.headers})
        elif self.is_stream:
            await self.end_stream(self.error_format.event(error, self.request_id))

    async def _start(
        self, status: int, fields: list[tuple[bytes, bytes]], headers: Mapping[str, str] | None
    ) -> None:
        for name, value in (headers or {}).items():
            if _HEADER_VALUE.match(value):
                fields.append((name.encode("ascii"), value.encode("ascii")))
        message: Message = {"type": "http.response.start", "status": status, "headers": fields}
        self.status = status
        self.is_started = True
        await self._send(message)


def etag_of(body: bytes) -> str:
    """The ETag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:16]}"'


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {max_bytes} bytes: shorten the input.")
