"""Errors for callers, and the one mapping from any exception to an HTTP status and OpenAI's error body.

ApiError
├── InvalidRequest (400)   ├── Unauthorized (401)   ├── Forbidden (403)   ├── NotFound (404)
├── MethodNotAllowed (405) ├── BodyTooLarge (413)   ├── RateLimited (429) ├── ServerError (500)
├── UpstreamFailed (502)   ├── Unavailable (503)    └── TimedOut (504)    ├── Cancelled (499)
└── ClientGone (499, never sent)
"""

from __future__ import annotations

import math

import msgspec

from backend.errors import EngineUnavailable, PromptTooLong, QueueFull, RequestError

RETRY_UNAVAILABLE_S = 2.0
"""`retry-after` while an engine is starting, dead or hung."""


class ApiError(Exception):
    """An error response: status, headers, and the members of the error body.

    `message` is for the caller: what happened, the offending value, the remedy; never prompt text or secrets.
    """

    status = 500
    type = "server_error"
    code: str | None = None
    upstream_status = 0
    """What an upstream answered, where `status` is another one; 0: it gave no status."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
        status: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        if type is not None:
            self.type = type
        if status is not None:
            self.status = status
        self.headers = headers or {}

    @property
    def kind(self) -> str:
        """The class for metrics and records: one of ours, also where an upstream has told its own status."""
        if type(self) is not ApiError:
            return type(self).__name__
        if self.status == 429:
            return "RateLimited"
        return "UpstreamFailed" if self.status >= 500 else "InvalidRequest"


class InvalidRequest(ApiError):
    """The request cannot succeed unchanged; `param` names the field."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(ApiError):
    """No API key, or an unknown one."""

    status = 401
    type = "invalid_request_error"  # as in OpenAI's API
    code = "invalid_api_key"


class Forbidden(ApiError):
    """The key is valid but not allowed to do this."""

    status = 403
    type = "permission_error"


class NotFound(ApiError):
    """No such path or no such model."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowed(ApiError):
    """The path exists, with another method; the `allow` header names it."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class BodyTooLarge(ApiError):
    """The body is larger than the limit."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class RateLimited(ApiError):
    """Too many requests: the queue is full, or the upstream answered 429."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class ServerError(ApiError):
    """An internal error; the log has the details under the request id."""


class UpstreamFailed(ApiError):
    """An upstream failed, or its response is malformed."""

    status = 502
    type = "upstream_error"
    code = "upstream_failed"


class Unavailable(ApiError):
    """The model cannot answer now: starting, restarting, or its upstream cannot be reached."""

    status = 503
    type = "server_error"
    code = "model_unavailable"


class TimedOut(ApiError):
    """A deadline passed: connect, first token, idle or total."""

    status = 504
    type = "timeout_error"
    code = "timeout"


class ClientGone(ApiError):
    """The client disconnected before the answer was complete; for accounting only."""

    status = 499
    type = "client_closed_request"
    code = "client_closed_request"


class Cancelled(ApiError):
    """An operator has cancelled the request. The status is one with which no SDK tries again."""

    status = 499
    type = "request_cancelled"
    code = "request_cancelled"


def retry_after(seconds: float) -> dict[str, str]:
    """The `retry-after` header for a wait of `seconds`, at least 1."""
    return {"retry-after": str(max(1, math.ceil(seconds)))}


def to_api_error(error: BaseException) -> ApiError:
    """Map any exception to its response. Unknown ones become a 500 without internals."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PromptTooLong):
        return InvalidRequest(str(error), param=error.param, code="context_length_exceeded")
    if isinstance(error, RequestError):
        return InvalidRequest(str(error), param=error.param)
    if isinstance(error, QueueFull):
        return RateLimited(str(error), code="engine_overloaded", headers=retry_after(error.retry_after_s))
    if isinstance(error, EngineUnavailable):
        return Unavailable(str(error), headers=retry_after(RETRY_UNAVAILABLE_S))
    if isinstance(error, RecursionError):  # the JSON parser's own limit is higher than that of later stages
        return InvalidRequest("The body is nested too deeply.", code="invalid_json")
    return ServerError("The gateway failed to answer this request; report it with its x-request-id.")


def error_object(error: ApiError) -> dict[str, str | None]:
    """The value of `error` in OpenAI's error body."""
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


def error_body(error: ApiError) -> bytes:
    """OpenAI's error body as JSON; characters that JSON cannot carry are replaced."""
    return _encode({"error": error_object(error)})


def error_event(error: ApiError) -> bytes:
    """The server-sent event that ends a stream that failed after its first byte."""
    return b"data: " + error_body(error) + b"\n\n"


def _encode(body: dict[str, dict[str, str | None]]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:  # a lone surrogate quoted from the request
        clean = {
            key: None if value is None else value.encode("utf-8", "replace").decode()
            for key, value in body["error"].items()
        }
        return msgspec.json.encode({"error": clean})
