"""Fallback to another model: which errors allow it, and when an answer has begun and it is too late."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.answer import Delta, Following, Generated
from gateway.errors import ApiError, RateLimited, TimedOut, Unavailable
from policies.routes import ErrorClass

CONTEXT_CODES = ("context_length_exceeded", "request_too_large")
REFUSAL_CODES = ("content_filter", "content_policy_violation")
UNAVAILABLE_CODES = (
    "model_unavailable",
    "upstream_unreachable",
    "upstream_connect_timeout",
    "model_not_found",
)


def error_class(error: ApiError) -> ErrorClass | None:
    """The class of an error in the policies' `fallback`; None: no other model would do better."""
    if error.code in CONTEXT_CODES or error.status == 413:
        return "context_too_long"
    if error.code in REFUSAL_CODES:
        return "refused"
    if isinstance(error, RateLimited) or error.status == 429:
        return "rate_limited"
    if isinstance(error, Unavailable) or error.status == 503 or error.code in UNAVAILABLE_CODES:
        return "unavailable"
    if isinstance(error, TimedOut) or error.status in (408, 504):
        return "timeout"
    return "server_error" if error.status >= 500 else None


async def begin(answer: Generated) -> None:
    """Wait for the first delta: until then an answer can fail without the client's notice."""
    first = await anext(answer.deltas, None)
    if first is not None:
        answer.deltas = _Begun(first, answer.deltas)


class _Begun(Following[Delta]):
    """Deltas of which the first has been read."""

    def __init__(self, first: Delta, rest: AsyncIterator[Delta]) -> None:
        super().__init__(rest)
        self._first: Delta | None = first

    async def __anext__(self) -> Delta:
        first, self._first = self._first, None
        return first if first is not None else await super().__anext__()
