"""Which failures are worth another call, and the wait before it."""

from __future__ import annotations

from email.utils import formatdate
from typing import get_args

import pytest

from gateway.errors import ApiError, InvalidRequest, TimedOut, UpstreamFailed
from gateway.fleet.retries import FailureClass, backoff_s, cause_of, failure_class, retry_after_s
from gateway.providers.upstream import errors as upstream_errors
from gateway.providers.upstream.redaction import Redactor
from gateway.providers.upstream.transport import (
    AnswerTooLong,
    ConnectFailed,
    ConnectionBroken,
    ConnectTimedOut,
    ReplyTimedOut,
)
from gateway.telemetry.instruments import UPSTREAM_FAILURES


def answered(status: int, body: bytes = b"", **headers: str) -> ApiError:
    return upstream_errors.of_status(status, headers, body, "m", Redactor())


@pytest.mark.parametrize("body", [b"", b'{"error": {"message": "no"}}'], ids=["bare", "explained"])
def test_statuses_that_pass(body: bytes) -> None:
    found = {status: cause_of(answered(status, body)) for status in range(300, 600)}
    assert {status: cause for status, cause in found.items() if cause is not None} == {
        408: "timeout",
        429: "rate_limited",
        500: "server_error",
        502: "server_error",
        503: "unavailable",
        504: "timeout",
        529: "unavailable",
    }


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (UpstreamFailed("x", code="upstream_unreachable"), "connect"),
        (TimedOut("x", code="upstream_connect_timeout"), "connect"),
        (UpstreamFailed("x", code="upstream_connection_broken"), "broken"),
        (UpstreamFailed("x", code="upstream_invalid_response"), "broken"),
        (TimedOut("x", code="upstream_first_token_timeout"), None),
        (UpstreamFailed("x", code="upstream_redirect"), None),
        (UpstreamFailed("x", code="upstream_wrong_count"), None),
        (upstream_errors.of_transport(AnswerTooLong("x"), "m", "idle"), None),
        (answered(429, b'{"error": {"message": "x", "code": "insufficient_quota"}}'), None),
        (InvalidRequest("x"), None),
        (InvalidRequest("x", status=502), None),
        (ApiError("x", status=502, code="content_filter"), None),
    ],
)
def test_failures_without_a_status(error: ApiError, cause: str | None) -> None:
    assert cause_of(error) == cause


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (answered(429), "429"),
        (answered(429, b'{"error": {"message": "x", "code": "insufficient_quota"}}'), "429"),
        (answered(500), "5xx"),
        (answered(529), "5xx"),
        (answered(501), "5xx"),
        (answered(408), "timeout"),
        (answered(504, b'{"error": {"message": "x", "code": "slow"}}'), "timeout"),
        (answered(401), "auth"),
        (answered(403, b'{"error": "no"}'), "auth"),
        (answered(404), "4xx"),
        (answered(302), "unusable"),
        (upstream_errors.of_transport(ConnectFailed("x"), "m", "idle"), "refused"),
        (upstream_errors.of_transport(ConnectTimedOut("x"), "m", "idle"), "refused"),
        (upstream_errors.of_transport(ConnectionBroken("x"), "m", "idle"), "cut"),
        (upstream_errors.of_transport(AnswerTooLong("x"), "m", "idle"), "unusable"),
        *(
            (upstream_errors.of_transport(ReplyTimedOut("x"), "m", limit), "timeout")
            for limit in ("first token", "idle", "total")
        ),
        (upstream_errors.invalid("m", "x"), "cut"),
        (InvalidRequest("x"), "4xx"),
    ],
)
def test_each_failure_has_a_kind(error: ApiError, kind: str) -> None:
    assert failure_class(error) == kind
    assert get_args(FailureClass) == UPSTREAM_FAILURES


def test_the_wait_that_an_upstream_asks_for() -> None:
    now_s = 1_700_000_000.0
    date = formatdate(now_s + 4, usegmt=True)
    assert retry_after_s(answered(429, **{"retry-after": "3"}), now_s) == 3.0
    assert retry_after_s(answered(503, **{"retry-after": date}), now_s) == 4.0
    assert retry_after_s(answered(503, **{"retry-after": date}), now_s + 9) == 0.0
    assert retry_after_s(answered(503), now_s) is None
    assert retry_after_s(answered(503, **{"retry-after": "Xxx, 99 Yyy 2026 99:99:99 GMT"}), now_s) is None


def test_the_wait_doubles_up_to_a_limit() -> None:
    assert [backoff_s(number, 1.0) for number in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert backoff_s(3, 0.25) == 0.2
