"""Maps failures of an upstream to API errors, without its keys, hosts and internals."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.errors import ApiError, RateLimited, TimedOut, UpstreamFailed
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.transport import (
    AnswerTooLong,
    ConnectFailed,
    ConnectTimedOut,
    ReplyTimedOut,
    TransportError,
)

logger = logging.getLogger(__name__)

MAX_ERROR_BYTES = 256 * 1024
MAX_MESSAGE_CHARACTERS = 2000
MAX_NAME_CHARACTERS = 200
"""Length of an error's type, code and param, of an answer's id and its finish reasons."""
_KEPT_STATUSES = {400, 404, 409, 413, 415, 422, 429, 500, 502, 503, 504}
"""Statuses passed on as they are when the upstream explains them in OpenAI's error shape."""

_DELAY = re.compile(r"0*([0-9]+)(\.[0-9]+)?s")
_RETRY_AFTER = re.compile(r"0*([0-9]+)|[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} ([0-9]{4,}) [0-9:]{8} GMT")
"""Seconds, or an HTTP date. Nothing else is passed on."""
MAX_RETRY_AFTER = "999999"
"""Seconds that stand for all longer waits."""

REQUEST_ID_HEADERS = ("request-id", "x-request-id", "x-amzn-requestid", "apim-request-id")
"""Headers of Anthropic, OpenAI and Google, AWS, Azure."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")

TRANSPORT_ERRORS = (TransportError,)
"""Everything that a transport and the event reader raise."""


class _Error(msgspec.Struct):
    message: str
    type: object = None
    param: object = None
    code: object = None
    status: object = None  # Google: the name of the code
    details: list[dict[str, Any]] = []  # Google


class _ErrorBody(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None  # AWS


def of_transport(error: Exception, model: str, waiting_for: str) -> ApiError:
    """Map an error of TRANSPORT_ERRORS. `waiting_for` names the limit: "first token" or "idle"."""
    logger.warning("upstream of model %r failed: %s %s", model, type(error).__name__, error)
    name = f"The upstream of model {model!r}"
    if isinstance(error, ConnectFailed):
        return UpstreamFailed(f"{name} cannot be reached: {error}.", code="upstream_unreachable")
    if isinstance(error, ConnectTimedOut):
        return TimedOut(f"{name} cannot be reached: {error}.", code="upstream_connect_timeout")
    if isinstance(error, ReplyTimedOut):
        code = f"upstream_{waiting_for.replace(' ', '_')}_timeout"
        return TimedOut(f"{name} sent nothing within its {waiting_for} time limit.", code=code)
    if isinstance(error, AnswerTooLong):
        return too_long(model, f"it is too long: {error}")
    return UpstreamFailed(f"{name} failed: {error}.", code="upstream_connection_broken")


def of_status(
    status: int, headers: Mapping[str, str], body: bytes, model: str, redactor: Redactor
) -> ApiError:
    """Map an answer that is not 200. No part of the error repeats a secret that `redactor` knows."""
    error = _of_status(status, headers, body, model, redactor)
    error.upstream_status = status
    return error


def _of_status(
    status: int, headers: Mapping[str, str], body: bytes, model: str, redactor: Redactor
) -> ApiError:
    logger.warning("upstream of model %r answered %d", model, status)
    name = f"The upstream of model {model!r}"
    kept = _retry_after(headers.get("retry-after", "").strip())
    request_id = next((headers[name] for name in REQUEST_ID_HEADERS if headers.get(name)), "")
    if _REQUEST_ID.fullmatch(request_id) and redactor.clean(request_id, len(request_id)) == request_id:
        kept["x-upstream-request-id"] = request_id
    status = 503 if status == 529 else status  # Anthropic's "overloaded"
    if status in {401, 403} or b'"API_KEY_INVALID"' in body[:MAX_ERROR_BYTES]:  # Google's is a 400
        return UpstreamFailed(
            f"{name} refused the gateway's API key; its operator must check the model's `api_key_env`.",
            code="upstream_authentication_error",
        )
    explained = of_error_body(body, redactor, status if status in _KEPT_STATUSES else 502)
    if explained is not None:
        explained.headers = {**explained.headers, **kept}
        kind = headers.get("x-amzn-errortype", "").partition(":")[0]
        explained.code = explained.code or redactor.clean(kind, MAX_NAME_CHARACTERS) or None
        return explained
    if status == 429:
        return RateLimited(f"{name} allows no more requests now.", headers=kept)
    if status in {408, 504}:
        return TimedOut(f"{name} answered {status}: it took too long.", code="upstream_timeout")
    if 300 <= status < 400:
        message = (
            f"{name} redirects elsewhere ({status}), which is not followed; its `base_url` must be corrected."
        )
        return UpstreamFailed(message, code="upstream_redirect")
    failed = UpstreamFailed(f"{name} answered {status} without an explanation.")
    if status in {413, 503}:
        failed.status = status
    failed.headers = kept
    return failed


def of_error_body(body: bytes, redactor: Redactor, status: int) -> ApiError | None:
    """The error in a body of a known error shape; None for other shapes, or when it is too long."""
    if len(body) > MAX_ERROR_BYTES:
        return None
    try:
        decoded = msgspec.json.decode(body, type=_ErrorBody | list[_ErrorBody])
        holder = decoded[0] if isinstance(decoded, list) else decoded  # Google may send a list
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        return None
    found = holder.error or holder.message
    if found is None:
        return None
    if isinstance(found, str):
        found = _Error(message=found)

    def name(value: object) -> str | None:
        return redactor.clean(value, MAX_NAME_CHARACTERS) if isinstance(value, str) else None

    is_number = isinstance(found.code, int) and not isinstance(found.code, bool)
    return ApiError(
        redactor.clean(found.message, MAX_MESSAGE_CHARACTERS),
        type=name(found.type) or ("invalid_request_error" if status < 500 else "upstream_error"),
        code=name(found.status) or name(str(found.code) if is_number else found.code),
        param=name(found.param),
        status=status,
        headers=_retry_delay(found.details) if status in (429, 503) else None,
    )


def _retry_after(value: str) -> dict[str, str]:
    """The header to pass on, within bounds; none for a value of another form."""
    found = _RETRY_AFTER.fullmatch(value)
    if found is None:
        return {}
    seconds, year = found[1] or "", found[2] or ""
    is_long = len(seconds) > len(MAX_RETRY_AFTER) or len(year) > 4
    return {"retry-after": MAX_RETRY_AFTER if is_long else seconds or value}


def _retry_delay(details: list[dict[str, Any]]) -> dict[str, str]:
    """The header for Google's `RetryInfo`, whose delay is like "7s" or "0.5s"."""
    for detail in details:
        if found := _DELAY.fullmatch(str(detail.get("retryDelay", ""))):
            is_long = len(found[1]) >= len(MAX_RETRY_AFTER)
            return {"retry-after": MAX_RETRY_AFTER if is_long else str(int(found[1]) + bool(found[2]))}
    return {}


def wrong_count(model: str, what: str) -> UpstreamFailed:
    """The error for a sound answer with more or fewer choices or vectors than were asked for."""
    error = invalid(model, f"{what}; ask for each in a request of its own")
    error.code = "upstream_wrong_count"
    return error


def too_long(model: str, what: str) -> UpstreamFailed:
    """The error for an answer of which more was sent than is taken, as of the next one."""
    error = invalid(model, what)
    error.code = "upstream_answer_too_long"
    return error


def invalid(model: str, what: str) -> UpstreamFailed:
    """The error for an answer that violates the API."""
    logger.warning("upstream of model %r sent an invalid answer: %s", model, what)
    message = f"The upstream of model {model!r} sent an invalid answer: {what}."
    return UpstreamFailed(message, code="upstream_invalid_response")
