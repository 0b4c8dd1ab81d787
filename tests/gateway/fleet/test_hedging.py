"""The first of two calls wins; nothing runs on, and nothing is left open, however they end."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from gateway.fleet.hedging import MIN_WAITS, Waits, first_of


class Calls:
    """Calls that end when a test says so."""

    def __init__(self) -> None:
        self.results: dict[str, asyncio.Future[str]] = {}
        self.cancelled: list[str] = []
        self.discarded: list[str] = []
        self.asked_twice = asyncio.Event()

    async def call(self, name: str) -> str:
        self.results[name] = asyncio.get_running_loop().create_future()
        try:
            return await self.results[name]
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def discard(self, result: str) -> None:
        self.discarded.append(result)

    async def second(self) -> str:
        self.asked_twice.set()
        return await self.call("second")

    def start(self, after_s: float | None = 0.0) -> asyncio.Task[str]:
        race = first_of(self.call("first"), after_s, self.second, self.discard)
        return asyncio.create_task(race)


async def started() -> tuple[Calls, asyncio.Task[str]]:
    calls = Calls()
    race = calls.start()
    await asyncio.wait_for(calls.asked_twice.wait(), 5)
    return calls, race


async def test_the_second_call_wins_and_the_first_is_cancelled() -> None:
    calls, race = await started()
    calls.results["second"].set_result("2")
    assert await race == "2" and calls.cancelled == ["first"] and not calls.discarded


async def test_the_first_call_may_still_win() -> None:
    calls, race = await started()
    calls.results["first"].set_result("1")
    assert await race == "1" and calls.cancelled == ["second"]


async def test_a_call_in_time_has_no_second() -> None:
    calls = Calls()
    race = calls.start(None)
    while "first" not in calls.results:
        await asyncio.sleep(0)
    calls.results["first"].set_result("1")
    assert await race == "1" and not calls.asked_twice.is_set() and not calls.cancelled


async def test_an_error_in_time_is_raised_at_once() -> None:
    calls = Calls()
    race = calls.start(60.0)
    while "first" not in calls.results:
        await asyncio.sleep(0)
    calls.results["first"].set_exception(ValueError("first"))
    with pytest.raises(ValueError, match="first"):
        await race
    assert not calls.asked_twice.is_set()


@pytest.mark.parametrize(("failed", "left"), [*permutations(["first", "second"])])
async def test_one_that_fails_leaves_the_other(failed: str, left: str) -> None:
    calls, race = await started()
    calls.results[failed].set_exception(ValueError("x"))
    await asyncio.sleep(0)
    assert not race.done()
    calls.results[left].set_result("good")
    assert await race == "good" and not calls.cancelled


async def test_where_both_fail_the_first_error_is_raised() -> None:
    for order in permutations(["first", "second"]):
        calls, race = await started()
        for name in order:
            calls.results[name].set_exception(ValueError(name))
            await asyncio.sleep(0)
        with pytest.raises(ValueError, match="first"):
            await race


async def test_two_results_at_the_same_time_leave_none_open() -> None:
    calls, race = await started()
    for name in ("first", "second"):
        calls.results[name].set_result(name)
    assert {await race, *calls.discarded} == {"first", "second"} and len(calls.discarded) == 1


async def test_a_client_that_leaves_ends_both() -> None:
    calls, race = await started()
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert sorted(calls.cancelled) == ["first", "second"]


async def test_a_client_that_leaves_at_the_end_leaves_no_result_open() -> None:
    calls, race = await started()
    calls.results["first"].set_result("1")
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert calls.discarded == ["1"] and calls.cancelled == ["second"]


async def test_without_another_target_the_first_call_goes_on() -> None:
    calls = Calls()
    race = asyncio.create_task(first_of(calls.call("first"), 0.0, lambda: None, calls.discard))
    while "first" not in calls.results:
        await asyncio.sleep(0.001)
    calls.results["first"].set_result("1")
    assert await race == "1" and not calls.cancelled


def test_what_is_late() -> None:
    waits = Waits()
    assert waits.late_s(0.5) == 0.5
    for number in range(1, MIN_WAITS):
        waits.add(float(number))
    assert waits.late_s("p95") is None
    waits.add(1000.0)
    assert (waits.late_s("p50"), waits.late_s("p95"), waits.late_s(2.0)) == (10.0, 19.0, 2.0)
    for _ in range(1000):
        waits.add(0.1)
    assert waits.late_s("p99") == 0.1
