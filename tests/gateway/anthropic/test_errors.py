"""Errors in Anthropic's envelope, as its client reads it."""

from __future__ import annotations

import json

import pytest
from anthropic.types import ErrorResponse

from gateway.anthropic.errors import ANTHROPIC_ERRORS
from gateway.errors import ApiError, InvalidRequest, NotFound, RateLimited, ServerError, TimedOut, Unavailable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("No."), "invalid_request_error"),
        (NotFound("No."), "not_found_error"),
        (RateLimited("No."), "rate_limit_error"),
        (Unavailable("No."), "overloaded_error"),
        (TimedOut("No."), "timeout_error"),
        (ServerError("No."), "api_error"),
        (ApiError("No.", status=409), "invalid_request_error"),
    ],
)
def test_errors_have_anthropics_types(error: ApiError, kind: str) -> None:
    found = ErrorResponse.model_validate_json(ANTHROPIC_ERRORS.body(error, "req_1"))
    assert (found.error.type, found.error.message, found.request_id) == (kind, "No.", "req_1")


def test_an_event_and_a_lone_surrogate() -> None:
    event = ANTHROPIC_ERRORS.event(NotFound("\ud800"), "req_1")
    assert event.startswith(b"event: error\ndata: ") and event.endswith(b"\n\n")
    assert json.loads(event.partition(b"data: ")[2])["error"]["message"] == "?"
