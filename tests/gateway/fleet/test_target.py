"""A call tells the target once how it ended, also where that is long after its first content."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.answer import Delta, Embedded, Generated, Relayed, Usage, close_answer
from gateway.errors import ApiError, Unavailable
from gateway.fleet.health import MAX_FAILURES_IN_ROW, Health
from gateway.fleet.target import LONG_WAIT_S, Target
from gateway.providers.fake import FakeProvider
from tests.gateway.fleet.clock import Clock


class Deltas(AsyncIterator[Delta]):
    def __init__(self, *, breaks_off: bool) -> None:
        self._left = [Delta(0, "a")]
        self._breaks_off = breaks_off
        self.is_closed = False

    async def __anext__(self) -> Delta:
        if self._left:
            return self._left.pop()
        if self._breaks_off:
            raise Unavailable("broken")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.is_closed = True


def target(clock: Clock | None = None) -> Target:
    clock = clock or Clock()
    return Target(FakeProvider(), Health("m", clock), clock=clock)


def stream(*, breaks_off: bool = False) -> Generated:
    return Generated(Deltas(breaks_off=breaks_off), Usage())


async def read(answer: Generated) -> int:
    return len([delta async for delta in answer.deltas])


async def test_streams_that_break_off_put_a_target_out() -> None:
    found = target()
    for _ in range(MAX_FAILURES_IN_ROW):
        assert found.health.trouble is None
        answer = found.begin().follow(stream(breaks_off=True))
        assert isinstance(answer, Generated)
        with pytest.raises(ApiError):
            await read(answer)
    assert found.health.trouble == "failing"


async def test_complete_answers_keep_it_in() -> None:
    found = target()
    for number in range(3 * MAX_FAILURES_IN_ROW):
        if number % 2:
            answer = found.begin().follow(stream())
            assert isinstance(answer, Generated) and await read(answer) == 1
        else:
            found.begin().follow(Embedded([], Usage()))
            found.begin().follow(Relayed(b"{}", Usage()))
        found.begin().fail(Unavailable("x"))
    assert found.health.trouble is None


async def test_a_probe_that_is_left_lets_another_one_follow() -> None:
    clock = Clock()
    found = target(clock)
    for _ in range(MAX_FAILURES_IN_ROW):
        found.begin().fail(Unavailable("x"))
    clock.now_s = 5.0
    probe = found.begin()
    assert found.health.trouble == "failing"
    probe.abandon()
    probe.abandon()
    assert found.health.trouble is None


async def test_a_target_that_hangs_looks_slow_though_clients_leave_first() -> None:
    clock = Clock()
    found = target(clock)
    found.begin().follow(Embedded([], Usage()))
    answered = found.begin()
    answered.follow(stream())
    hanging = found.begin()
    clock.now_s = 9.0
    answered.abandon()
    assert found.latency.value_s() == 0.0
    hanging.abandon()
    assert found.latency.value_s() == 9.0 and found.health.trouble is None


async def test_long_waits_without_content_put_a_target_out() -> None:
    clock = Clock()
    found = target(clock)
    for _ in range(MAX_FAILURES_IN_ROW):
        calls = [found.begin(), found.begin()]
        calls[0].follow(stream())
        clock.now_s += LONG_WAIT_S
        calls[1].abandon()
        calls[0].abandon()
    assert found.health.trouble == "failing"


async def test_closing_closes_the_source() -> None:
    deltas = Deltas(breaks_off=False)
    answer = target().begin().follow(Generated(deltas, Usage()))
    await close_answer(answer)
    assert deltas.is_closed
