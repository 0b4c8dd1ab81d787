from __future__ import annotations

import time

import pytest

from gateway.processes import restarts
from gateway.processes.restarts import LAST_BACKOFF_READY_S, LAST_BACKOFF_S, STABLE_AFTER_S, Restarts


def test_waits_double_up_to_a_limit_that_is_lower_for_what_was_ready() -> None:
    for ready_s, limit_s in ((None, LAST_BACKOFF_S), (1.0, LAST_BACKOFF_READY_S)):
        failing = Restarts()
        waits = [failing.failed("exit code 1", ready_s) for _ in range(10)]
        assert waits[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
        assert waits[-1] == limit_s and waits == sorted(waits)


def test_after_a_long_time_ready_all_is_forgotten() -> None:
    failing = Restarts()
    for _ in range(8):
        failing.failed("exit code 1", None)
    assert failing.repeated is not None
    assert failing.failed("exit code 1", STABLE_AFTER_S) == restarts.FIRST_BACKOFF_S
    assert failing.repeated is None


def test_three_failures_of_one_kind_are_repeated() -> None:
    failing = Restarts()
    for number in (1, 2):
        failing.failed(f"exit code 1: at 0x7f{number} no room for {number}.5 GiB", None)
        assert failing.repeated is None
    before_s = time.time()
    wait_s = failing.failed("exit code 1: at 0x7f00 no room for 3 GiB", None)
    assert failing.repeated is not None and failing.repeated.count == 3
    assert failing.repeated.cause == "exit code 1: at 0x7f00 no room for 3 GiB"
    assert before_s + wait_s <= failing.repeated.retry_at_s <= time.time() + wait_s


def test_another_cause_counts_anew_and_waits_on() -> None:
    failing = Restarts()
    for _ in range(3):
        last_s = failing.failed("killed by SIGKILL", None)
    assert failing.failed("killed by SIGSEGV", None) == 2 * last_s
    assert failing.repeated is None
