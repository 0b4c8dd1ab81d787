"""Errors in Anthropic's envelope: `{"type": "error", "error": {type, message}, "request_id"}`."""

from __future__ import annotations

import msgspec

from gateway.errors import ApiError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's error type by HTTP status; every other one is an `api_error`."""


class AnthropicErrors:
    """Anthropic's: `{"type": "error", "error": {type, message}, "request_id"}`."""

    request_id_header = b"request-id"
    client_header = b"anthropic-version"

    def base_url_remedy(self, path: str) -> str:
        """What a client's base_url must be, since Anthropic's differs from OpenAI's."""
        return " Anthropic's base_url ends without /v1: its clients add that themselves."

    def body(self, error: ApiError, request_id: str) -> bytes:
        """The body of an error response."""
        kind = TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
        message = error.message.encode("utf-8", "replace").decode()  # may quote a lone surrogate
        return msgspec.json.encode(
            {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
        )

    def event(self, error: ApiError, request_id: str) -> bytes:
        """The event that ends a stream."""
        return b"event: error\ndata: %s\n\n" % self.body(error, request_id)


ANTHROPIC_ERRORS = AnthropicErrors()
