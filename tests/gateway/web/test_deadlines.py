from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from starlette.types import Message

from gateway.errors import Cancelled, ClientGone, TimedOut
from gateway.web.deadlines import Deadlines, TimeLimits


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


class Clock:
    """The time of an event loop of its own, which passes when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now_s = 0.0
        loop.time = lambda: self.now_s  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Let time pass, and what is due then happen."""
        self.now_s += seconds
        for _ in range(3):
            await asyncio.sleep(0)


def run(test: Callable[[Clock], Coroutine[None, None, None]]) -> None:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(test(Clock(runner.get_loop())))


async def ended_by(deadlines: Deadlines) -> str:
    """Wait until the deadlines end this task; return the message that the client would get."""
    with pytest.raises(asyncio.CancelledError):
        await forever()
    deadlines.close()
    error = deadlines.error()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    return error.message


async def test_the_first_token_has_a_limit() -> None:
    deadlines = Deadlines(60)
    deadlines.start_model_call(TimeLimits(0.02, 60, 60))
    assert "no first token within 0.02 s" in await ended_by(deadlines)
    assert isinstance(deadlines.error(), TimedOut)


async def test_idle_time_has_a_limit_of_its_own() -> None:
    deadlines = Deadlines(60)
    deadlines.start_model_call(TimeLimits(60, 0.02, 60))
    deadlines.record_output()
    assert "gave nothing for 0.02 s" in await ended_by(deadlines)


async def test_the_total_has_a_limit_whatever_arrives_meanwhile() -> None:
    deadlines = Deadlines(60)
    deadlines.start_model_call(TimeLimits(60, 60, 0.05))
    deadlines.record_output()
    assert "not complete within 0.05 s" in await ended_by(deadlines)


def test_output_restarts_the_idle_limit() -> None:
    async def test(clock: Clock) -> None:
        deadlines = Deadlines(60)
        deadlines.start_model_call(TimeLimits(60, 1, 60))
        for _ in range(8):
            deadlines.record_output()
            await clock.advance(0.8)
        assert deadlines.cancel_reason is None
        with pytest.raises(asyncio.CancelledError):
            await clock.advance(0.3)
        assert deadlines.cancel_reason == "idle"
        deadlines.close()
        deadlines.error()

    run(test)


async def test_a_slow_client_is_not_a_slow_model() -> None:
    deadlines = Deadlines(60)
    deadlines.start_model_call(TimeLimits(60, 0.02, 60))
    deadlines.record_output()
    deadlines.pause_idle()
    await asyncio.sleep(0.1)
    assert deadlines.cancel_reason is None
    deadlines.resume_idle()
    assert "gave nothing" in await ended_by(deadlines)


def test_time_in_a_slow_write_does_not_count_as_idle() -> None:
    async def test(clock: Clock) -> None:
        deadlines = Deadlines(60)
        deadlines.start_model_call(TimeLimits(60, 0.3, 60))
        deadlines.record_output()
        deadlines.pause_idle()
        await clock.advance(0.2)
        deadlines.resume_idle()
        await clock.advance(0.2)  # 0.4 s after the output, 0.2 s after the write
        assert deadlines.cancel_reason is None
        deadlines.close()

    run(test)


async def test_a_disconnect_cancels_the_task() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    deadlines = Deadlines(60)
    deadlines.watch_disconnect(messages.get)
    messages.put_nowait({"type": "http.request"})
    messages.put_nowait({"type": "http.disconnect"})
    await ended_by(deadlines)
    assert isinstance(deadlines.error(), ClientGone)


async def test_closed_deadlines_do_nothing() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    deadlines = Deadlines(60)
    deadlines.watch_disconnect(messages.get)
    deadlines.start_model_call(TimeLimits(0.01, 0.01, 0.02))
    deadlines.close()
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.sleep(0.05)
    assert deadlines.cancel_reason is None


async def test_an_operator_cancels_nothing_that_has_ended() -> None:
    deadlines = Deadlines(60)
    deadlines.close()
    deadlines.cancel()
    await asyncio.sleep(0)
    assert deadlines.cancel_reason is None


async def test_an_operator_cancels_once() -> None:
    deadlines = Deadlines(60)
    deadlines.cancel()
    deadlines.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forever()
    error = deadlines.error()
    deadlines.close()
    assert isinstance(error, Cancelled) and (error.status, error.code) == (499, "request_cancelled")
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
