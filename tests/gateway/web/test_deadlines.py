from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from gateway.errors import ClientGone, TimedOut
from gateway.web.deadlines import Limits, Watch


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def ended_by(watch: Watch) -> str:
    """Wait until the watch ends this task; return what the caller would be told."""
    with pytest.raises(asyncio.CancelledError):
        await forever()
    watch.close()
    error = watch.error()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    return error.message


async def test_the_first_token_has_a_limit() -> None:
    watch = Watch(60)
    watch.expect(Limits(0.02, 60, 60))
    assert "no first token within 0.02 s" in await ended_by(watch)
    assert isinstance(watch.error(), TimedOut)


async def test_idling_has_a_limit_of_its_own() -> None:
    watch = Watch(60)
    watch.expect(Limits(60, 0.02, 60))
    watch.progress()
    assert "gave nothing for 0.02 s" in await ended_by(watch)


async def test_the_whole_has_a_limit_whatever_is_given_meanwhile() -> None:
    watch = Watch(60)
    watch.expect(Limits(60, 60, 0.05))
    watch.progress()
    assert "not complete within 0.05 s" in await ended_by(watch)


async def test_progress_moves_the_idle_limit() -> None:
    watch = Watch(60)
    watch.expect(Limits(60, 0.1, 60))
    for _ in range(8):
        watch.progress()
        await asyncio.sleep(0.03)
    assert watch.reason is None
    watch.close()


async def test_a_slow_reader_is_not_a_slow_model() -> None:
    watch = Watch(60)
    watch.expect(Limits(60, 0.02, 60))
    watch.progress()
    watch.is_sending = True
    await asyncio.sleep(0.1)
    assert watch.reason is None
    watch.is_sending = False
    assert "gave nothing" in await ended_by(watch)


async def test_hanging_up_ends_the_task() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    watch = Watch(60)
    watch.listen(messages.get)
    messages.put_nowait({"type": "http.request"})
    messages.put_nowait({"type": "http.disconnect"})
    await ended_by(watch)
    assert isinstance(watch.error(), ClientGone)


async def test_a_closed_watch_does_nothing() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    watch = Watch(60)
    watch.listen(messages.get)
    watch.expect(Limits(0.01, 0.01, 0.02))
    watch.close()
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.sleep(0.05)
    assert watch.reason is None
