"""How one API writes its errors: the body of a response, and the last event of a stream that failed."""

from __future__ import annotations

from typing import Protocol

from gateway.errors import ApiError, error_body, error_event


class ErrorFormat(Protocol):
    """Encodes errors for one API."""

    request_id_header: bytes
    """The header that carries the request id, beside `x-request-id`; b"" for none."""

    def body(self, error: ApiError, request_id: str) -> bytes:
        """The body of an error response, JSON."""
        ...

    def event(self, error: ApiError, request_id: str) -> bytes:
        """The server-sent event that ends a stream that failed after its first byte."""
        ...


class OpenAIErrors:
    """OpenAI's: `{"error": {message, type, param, code}}`."""

    request_id_header = b""

    def body(self, error: ApiError, request_id: str) -> bytes:
        """See ErrorFormat."""
        return error_body(error)

    def event(self, error: ApiError, request_id: str) -> bytes:
        """See ErrorFormat."""
        return error_event(error)


OPENAI_ERRORS = OpenAIErrors()
