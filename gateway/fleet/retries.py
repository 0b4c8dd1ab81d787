"""Which failures of an upstream are worth another call, and after how long."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Literal

from gateway.errors import ApiError
from policies.retries import RetryCause

MAX_RETRY_AFTER_S = 5.0
"""An upstream that asks for a longer wait is not asked again by the same request."""
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0

_BY_CODE: Mapping[str, RetryCause] = {
    "upstream_unreachable": "connect",
    "upstream_connect_timeout": "connect",
    "upstream_connection_broken": "broken",
    "upstream_invalid_response": "broken",
}
_BY_STATUS: Mapping[int, RetryCause] = {
    408: "timeout",
    429: "rate_limited",
    500: "server_error",
    502: "server_error",
    503: "unavailable",
    504: "timeout",
    529: "unavailable",
}
TIME_LIMITS = ("upstream_first_token_timeout", "upstream_idle_timeout", "upstream_total_timeout")
"""Codes of the gateway's own limits on an upstream."""
FailureClass = Literal["429", "5xx", "timeout", "cut", "auth", "refused", "unusable", "4xx"]
"""`refused`: no connection; `unusable`: too long, of another number of choices, or a redirect."""
_CLASSES: Mapping[str, FailureClass] = {
    "upstream_unreachable": "refused",
    "upstream_connect_timeout": "refused",
    "upstream_connection_broken": "cut",
    "upstream_invalid_response": "cut",
    "upstream_authentication_error": "auth",
    "upstream_answer_too_long": "unusable",
    "upstream_redirect": "unusable",
    "upstream_wrong_count": "unusable",
    "upstream_first_token_timeout": "timeout",
    "upstream_idle_timeout": "timeout",
    "upstream_total_timeout": "timeout",
}
_FINAL_CODES = frozenset(
    {
        "content_filter", "content_policy_violation", "context_length_exceeded", "insufficient_quota",
        "request_too_large", "upstream_answer_too_long", "upstream_authentication_error", "upstream_redirect",
        "upstream_wrong_count",
        *TIME_LIMITS,
    }
)  # fmt: skip
"""The same call would fail in the same way, or has had all the time that it may take."""


def cause_of(error: ApiError) -> RetryCause | None:
    """Why the call may be made again; None: it would fail in the same way."""
    is_refusal = error.status >= 500 and error.type == "invalid_request_error"  # in the middle of a stream
    if error.code in _FINAL_CODES or is_refusal:
        return None
    by_status = _BY_STATUS.get(error.upstream_status or error.status)
    return _BY_CODE.get(error.code or "", by_status)


def cause_elsewhere(error: ApiError) -> RetryCause | None:
    """Why another target may be asked; None: it would fail in the same way."""
    if error.code in TIME_LIMITS:
        return "timeout"
    if error.code == "upstream_authentication_error":
        return "key_refused"
    return "rate_limited" if error.upstream_status == 429 else cause_of(error)


def failure_class(error: ApiError) -> FailureClass:
    """What kind of failure one call was, for the metrics."""
    status = error.upstream_status or error.status
    by_status: FailureClass = "5xx" if status >= 500 else "4xx"
    if status in (408, 429, 504):
        by_status = "429" if status == 429 else "timeout"
    return _CLASSES.get(error.code or "", by_status)


def retry_after_s(error: ApiError, now_s: float) -> float | None:
    """What the upstream's `retry-after` asks for, in seconds or as a date; None where it asks for nothing."""
    value = error.headers.get("retry-after", "")
    if value.isdecimal():
        return float(value)
    try:
        until_s: float = parsedate_to_datetime(value).timestamp()
    except ValueError:  # also where there is none
        return None
    return max(0.0, until_s - now_s)


def backoff_s(num_retries: int, draw: float) -> float:
    """Full jitter: a random time, `draw` of 0 to 1, up to a limit that doubles with each retry."""
    return draw * min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0**num_retries)
