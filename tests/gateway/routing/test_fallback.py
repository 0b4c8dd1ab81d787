"""Which errors let another model take over, and reading the first delta ahead."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from backend.errors import EngineUnavailable, QueueFull
from gateway.answer import Delta, Generated, Usage
from gateway.errors import (
    ApiError,
    BodyTooLarge,
    InvalidRequest,
    NotFound,
    RateLimited,
    ServerError,
    TimedOut,
    Unauthorized,
    Unavailable,
    UpstreamFailed,
    to_api_error,
)
from gateway.routing.fallback import begin, error_class


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("x", code="context_length_exceeded"), "context_too_long"),
        (ApiError("x", status=400, code="context_length_exceeded"), "context_too_long"),
        (BodyTooLarge("x"), "context_too_long"),
        (InvalidRequest("x", code="content_filter"), "refused"),
        (ApiError("x", status=400, code="content_policy_violation"), "refused"),
        (RateLimited("x"), "rate_limited"),
        (ApiError("x", status=429, code="quota"), "rate_limited"),
        (to_api_error(QueueFull("x", 1.0)), "rate_limited"),
        (Unavailable("x"), "unavailable"),
        (to_api_error(EngineUnavailable("x")), "unavailable"),
        (UpstreamFailed("x", code="upstream_unreachable"), "unavailable"),
        (UpstreamFailed("x", status=503), "unavailable"),
        (TimedOut("x", code="upstream_connect_timeout"), "unavailable"),
        (NotFound("x", code="model_not_found"), "unavailable"),
        (TimedOut("x"), "timeout"),
        (ServerError("x"), "server_error"),
        (UpstreamFailed("x"), "server_error"),
        (InvalidRequest("x"), None),
        (Unauthorized("x"), None),
        (ApiError("x", status=422), None),
    ],
)
def test_classes(error: ApiError, kind: str | None) -> None:
    assert error_class(error) == kind


async def test_reading_ahead_changes_nothing_and_closes_the_source() -> None:
    is_closed = False

    async def script() -> AsyncIterator[Delta]:
        nonlocal is_closed
        try:
            yield Delta(0, "a")
            yield Delta(0, "b")
        finally:
            is_closed = True

    answer = Generated(script(), Usage())
    await begin(answer)
    assert [delta.text async for delta in answer.deltas] == ["a", "b"]

    abandoned = Generated(script(), Usage())
    await begin(abandoned)
    is_closed = False
    await abandoned.deltas.aclose()  # type: ignore[attr-defined]
    assert is_closed


async def test_an_empty_answer_stays_empty() -> None:
    async def script() -> AsyncIterator[Delta]:
        return
        yield

    answer = Generated(script(), Usage())
    await begin(answer)
    assert [delta async for delta in answer.deltas] == []
