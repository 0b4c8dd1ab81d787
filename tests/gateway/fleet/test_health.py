"""A target that fails is left out for longer and longer, and one call at a time finds out when it works."""

from __future__ import annotations

import logging
from email.utils import formatdate

import pytest

from gateway.errors import ApiError, InvalidRequest, RateLimited, TimedOut, Unavailable, UpstreamFailed
from gateway.fleet.health import (
    FIRST_PAUSE_S,
    MAX_FAILURES_IN_ROW,
    MIN_CALLS,
    PROBE_S,
    WINDOW_S,
    Health,
    trouble_of,
)
from tests.gateway.fleet.clock import Clock

NOW_S = 1_700_000_000.0
DOWN = Unavailable("x")


class Probed:
    """A target's health, and what happens to it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.health = Health("m", self.clock, lambda: NOW_S)
        self.out: list[str] = []
        self.health.on_out = self.out.append

    def call(self, error: ApiError | None = None) -> bool:
        """Make a call that fails like this, or is complete; whether it was a probe."""
        is_probe, num_pauses = self.health.begin(), self.health.num_pauses
        trouble = None if error is None else trouble_of(error)
        if error is not None and trouble is not None:
            self.health.failed(trouble, error, is_probe=is_probe)
        else:
            self.health.answered(num_pauses)
            self.health.completed()
        return is_probe

    def out_for_s(self) -> float:
        """Moves the clock to when it may be asked again."""
        start_s = self.clock.now_s
        while self.health.trouble is not None:
            self.clock.now_s += 0.5
        return self.clock.now_s - start_s


def test_five_failures_in_a_row_put_it_out() -> None:
    probed = Probed()
    for _ in range(MAX_FAILURES_IN_ROW - 1):
        probed.call(DOWN)
    probed.call()
    for _ in range(MAX_FAILURES_IN_ROW - 1):
        probed.call(DOWN)
    assert probed.health.trouble is None
    probed.call(DOWN)
    assert probed.health.trouble == "failing" and probed.out == ["failing"]
    assert probed.health.recent() == (2 * MAX_FAILURES_IN_ROW, 2 * MAX_FAILURES_IN_ROW - 1)
    assert probed.health.out_s() == FIRST_PAUSE_S
    probed.clock.now_s += WINDOW_S
    assert probed.health.recent() == (0, 0) and probed.health.out_s() == 0.0


def test_more_than_half_of_many_calls_put_it_out() -> None:
    probed = Probed()
    for number in range(MIN_CALLS):
        probed.call(DOWN if number % 2 else None)
    assert probed.health.trouble is None
    probed.call(DOWN)
    assert probed.health.trouble == "failing"


def test_failures_of_long_ago_do_not_count() -> None:
    probed = Probed()
    for number in range(MIN_CALLS):
        probed.call(DOWN if number % 4 else None)
        probed.clock.now_s += 1.0
    assert probed.health.trouble is None


def test_pauses_double_up_to_5_min_and_start_again_after_an_answer() -> None:
    probed = Probed()
    for _ in range(MAX_FAILURES_IN_ROW):
        probed.call(DOWN)
    pauses = [probed.out_for_s()]
    while pauses[-1] < 300 and len(pauses) < 20:
        assert probed.call(DOWN)
        pauses.append(probed.out_for_s())
    assert pauses == [5, 10, 20, 40, 80, 160, 300]
    assert probed.call() and probed.health.trouble is None
    for _ in range(MAX_FAILURES_IN_ROW):
        probed.call(DOWN)
    assert probed.out_for_s() == 5


def test_one_call_probes_at_a_time() -> None:
    probed = Probed()
    for _ in range(MAX_FAILURES_IN_ROW):
        probed.call(DOWN)
    probed.out_for_s()
    assert probed.health.begin()
    assert probed.health.trouble == "failing" and not probed.health.begin()
    probed.health.abandoned()
    assert probed.health.trouble is None and probed.health.begin()
    assert probed.out_for_s() == PROBE_S  # a probe that never ends


def test_an_answer_from_before_a_pause_does_not_end_it() -> None:
    probed = Probed()
    before = probed.health.num_pauses
    for _ in range(MAX_FAILURES_IN_ROW):
        probed.call(DOWN)
    probed.health.answered(before)
    assert probed.health.trouble == "failing"


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({}, 10.0),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": formatdate(NOW_S + 30, usegmt=True)}, 30.0),
        ({"retry-after": "86400"}, 300.0),
        ({"retry-after": "0"}, 0.0),
    ],
)
def test_a_429_cools_for_as_long_as_it_says(headers: dict[str, str], pause_s: float) -> None:
    probed = Probed()
    probed.call(RateLimited("x", headers=headers))
    assert probed.health.trouble == ("rate_limited" if pause_s else None)
    assert probed.out_for_s() == pause_s


def test_a_refused_key_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    probed = Probed()
    probed.call(UpstreamFailed("x", code="upstream_authentication_error"))
    assert probed.health.trouble == "key_refused" and probed.out_for_s() == 300
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (InvalidRequest("x"), None),
        (TimedOut("x", code="upstream_first_token_timeout"), "failing"),
        (TimedOut("x", code="upstream_idle_timeout"), "failing"),
        (UpstreamFailed("x", code="upstream_unreachable"), "failing"),
        (UpstreamFailed("x", code="upstream_connection_broken"), "failing"),
        (ApiError("x", status=400, code="content_filter"), None),
    ],
)
def test_the_requests_own_faults_are_no_failures(error: ApiError, trouble: str | None) -> None:
    assert trouble_of(error) == trouble
