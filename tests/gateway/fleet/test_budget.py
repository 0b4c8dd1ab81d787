"""Retries cannot multiply the load of an upstream that fails."""

from __future__ import annotations

from gateway.fleet.budget import ALWAYS_PER_S, RetryBudget
from tests.gateway.fleet.clock import Clock


def test_an_upstream_that_fails_always_gets_a_tenth_more_calls() -> None:
    clock = Clock()
    budget = RetryBudget(clock)
    retries = 0
    for number in range(6000):  # 100 calls per second, each wants two retries
        clock.now_s = number / 100
        budget.count_call()
        retries += sum(budget.try_take(0.1) for _ in range(2))
    assert 0.1 * 6000 <= retries <= 0.1 * 6000 + ALWAYS_PER_S * 60


def test_a_quiet_upstream_has_a_few_per_second() -> None:
    clock = Clock()
    budget = RetryBudget(clock)
    budget.count_call()
    assert [budget.try_take(0.1) for _ in range(5)] == [True] * ALWAYS_PER_S + [False] * 2
    clock.now_s = 1.0
    assert budget.try_take(0.0)


def test_calls_of_more_than_a_minute_ago_do_not_count() -> None:
    clock = Clock()
    budget = RetryBudget(clock)
    for _ in range(100):
        budget.count_call()
    clock.now_s = 59.0
    assert sum(budget.try_take(0.1) for _ in range(20)) == 10
    clock.now_s = 61.0
    assert sum(budget.try_take(0.1) for _ in range(20)) == ALWAYS_PER_S
