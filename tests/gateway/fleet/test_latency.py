from __future__ import annotations

import pytest

from gateway.fleet.latency import DECAY_S, MIN_FAILED_S, PeakLatency
from tests.gateway.fleet.clock import Clock


def test_a_peak_counts_at_once_and_fades() -> None:
    clock = Clock()
    latency = PeakLatency(clock)
    assert not latency.is_measured and latency.value_s() == 0.0
    latency.answered(0.1)
    latency.answered(2.0)
    assert latency.is_measured and latency.value_s() == 2.0
    clock.now_s = DECAY_S
    assert latency.value_s() == pytest.approx(2.0 / 2.718281828)
    latency.answered(0.1)
    assert 0.1 < latency.value_s() < 2.0


def test_a_fast_failure_looks_slow() -> None:
    latency = PeakLatency(Clock())
    latency.failed(0.001)
    assert latency.is_measured and latency.value_s() == MIN_FAILED_S
    latency.failed(0.001)
    assert latency.value_s() == 2 * MIN_FAILED_S


def test_a_failure_is_soon_forgotten() -> None:
    clock = Clock()
    latency = PeakLatency(clock)
    latency.answered(0.05)
    for _ in range(5):
        latency.failed(0.001)
    clock.now_s = 14.0
    assert latency.value_s() < 0.05
    latency.failed(0.001)
    latency.answered(0.05)
    assert latency.value_s() == 0.05


def test_a_wait_that_ends_without_an_answer_counts() -> None:
    latency = PeakLatency(Clock())
    latency.waited(0.001)
    assert not latency.is_measured
    latency.waited(0.2)
    assert latency.is_measured and latency.value_s() == MIN_FAILED_S
    latency.waited(8.0)
    latency.waited(3.0)
    assert latency.value_s() == 8.0
    fast = PeakLatency(Clock())
    fast.answered(0.05)
    fast.waited(0.001)
    assert fast.value_s() == 0.05
