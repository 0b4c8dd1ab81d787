from __future__ import annotations

from cache.circuit_breaker import CircuitBreaker


def test_it_opens_on_a_failure_and_lets_one_probe_through_at_a_time() -> None:
    now_s = 100.0
    breaker = CircuitBreaker(5.0, lambda: now_s)
    assert breaker.allows_call() and not breaker.is_open
    breaker.record(is_success=False)
    assert breaker.is_open
    now_s = 104.9
    assert not breaker.allows_call()
    now_s = 105.0
    assert [breaker.allows_call() for _ in range(3)] == [True, False, False]
    breaker.record(is_success=False)
    now_s = 109.9
    assert not breaker.allows_call()
    now_s = 110.0
    assert breaker.allows_call()
    breaker.record(is_success=True)
    assert [breaker.allows_call() for _ in range(3)] == [True] * 3 and not breaker.is_open


def test_a_probe_that_never_ends_is_followed_by_another() -> None:
    times_s = iter([0.0, 5.0, 10.0, 15.0])
    breaker = CircuitBreaker(5.0, lambda: next(times_s))
    breaker.record(is_success=False)
    assert [breaker.allows_call() for _ in range(3)] == [True] * 3
