from __future__ import annotations

import json

import pytest

from backend.errors import EngineUnavailable, PromptTooLong, QueueFull, RequestError, TemplateError
from gateway import errors
from gateway.errors import (
    ApiError,
    InvalidRequest,
    ServerError,
    TimedOut,
    error_body,
    error_event,
    to_api_error,
)
from gateway.telemetry.instruments import CALL_ERRORS


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (PromptTooLong("too long", "messages"), 400, "context_length_exceeded"),
        (RequestError("no", "top_k"), 400, None),
        (TemplateError("line 3"), 400, None),
        (QueueFull("full", 2.2), 429, "engine_overloaded"),
        (EngineUnavailable("gone"), 503, "model_unavailable"),
        (RecursionError("secret prompt"), 400, "invalid_json"),
        (ValueError("secret prompt"), 500, None),
    ],
)
def test_every_exception_maps_to_a_response(raised: Exception, status: int, code: str | None) -> None:
    error = to_api_error(raised)
    assert (error.status, error.code) == (status, code)
    assert "secret" not in error.message


def test_retry_after_is_in_whole_seconds_and_at_least_one() -> None:
    assert to_api_error(QueueFull("full", 2.2)).headers == {"retry-after": "3"}
    assert to_api_error(QueueFull("full", 0.0)).headers == {"retry-after": "1"}


def test_an_api_error_stays_itself() -> None:
    error = InvalidRequest("no", param="n")
    assert to_api_error(error) is error


def test_the_body_is_openais() -> None:
    body = json.loads(error_body(InvalidRequest("no", param="n", code="c")))
    assert body == {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": "c"}}
    event = error_event(ServerError("no"))
    assert event.startswith(b"data: {") and event.endswith(b"}\n\n")


def test_characters_that_json_cannot_encode_are_replaced() -> None:
    assert json.loads(error_body(InvalidRequest("x\ud800")))["error"]["message"] == "x?"


def test_the_drawn_tree_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    for kind in ApiError.__subclasses__():
        assert f"{kind.__name__} ({kind.status}" in drawn


@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, "UpstreamFailed"), (429, "RateLimited"), (404, "InvalidRequest")],
)
def test_what_an_upstream_has_refused_itself_has_a_class(status: int, kind: str) -> None:
    """Its error keeps the upstream's status, so it is of no class of ours."""
    assert ApiError("no", status=status).kind == kind and kind in CALL_ERRORS
    assert TimedOut("late", status=status).kind == "TimedOut"
