from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gateway.errors import ClientGone, TimedOut
from gateway.web.deadlines import Deadlines, TimeLimits


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


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


async def test_output_restarts_the_idle_limit() -> None:
    deadlines = Deadlines(60)
    deadlines.start_model_call(TimeLimits(60, 0.1, 60))
    for _ in range(8):
        deadlines.record_output()
        await asyncio.sleep(0.03)
    assert deadlines.cancel_reason is None
    deadlines.close()


async def test_a_slow_client_is_not_a_slow_model() -> None:
    deadlines = Deadlines(60)
    deadlines.start_model_call(TimeLimits(60, 0.02, 60))
    deadlines.record_output()
    deadlines.pause_idle()
    await asyncio.sleep(0.1)
    assert deadlines.cancel_reason is None
    deadlines.resume_idle()
    assert "gave nothing" in await ended_by(deadlines)


async def test_time_in_a_slow_write_does_not_count_as_idle() -> None:
    deadlines = Deadlines(60)
    deadlines.start_model_call(TimeLimits(60, 0.3, 60))
    deadlines.record_output()
    deadlines.pause_idle()
    await asyncio.sleep(0.2)
    deadlines.resume_idle()
    await asyncio.sleep(0.2)  # 0.4 s after the output, 0.2 s after the write
    assert deadlines.cancel_reason is None
    deadlines.close()


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
