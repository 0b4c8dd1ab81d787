"""A second call where the first one is slow: the first content wins, and the other call is cancelled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Call = Coroutine[Any, Any, T]
MIN_WAITS = 20
"""With fewer, none is called long."""
MAX_WAITS = 256


class Waits:
    """The latest times from a call to its first content."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=MAX_WAITS)

    def add(self, took_s: float) -> None:
        """An answer began after this time."""
        self._latest.append(took_s)

    def late_s(self, after: float | str) -> float | None:
        """When an answer is late: after seconds, or as "p95" says; None where too few are known."""
        if not isinstance(after, str):
            return after
        last = len(self._latest) - 1
        return None if last + 1 < MIN_WAITS else sorted(self._latest)[last * int(after[1:]) // 100]


async def first_of(
    first: Call[T],
    after_s: float | None,
    second: Callable[[], Call[T] | None],
    discard: Callable[[T], Awaitable[None]],
) -> T:
    """The result that is there first, of one call or two. Raises the first call's error where none is.

    `second` gives one more call where `after_s` have passed. No call runs on at the end; `discard` gets a
    result that nothing waits for any more.
    """
    tasks = [asyncio.create_task(first)]
    winner: asyncio.Task[T] | None = None
    try:
        _, running = await asyncio.wait(tasks, timeout=after_s)
        if running and (other := second()) is not None:
            tasks.append(asyncio.create_task(other))
            running = {*tasks}
        while running and winner is None:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            winner = next((task for task in done if task.exception() is None), None)
        winner = winner or tasks[0]
        await _end([task for task in tasks if task is not winner], discard)
    except asyncio.CancelledError:
        await _end(tasks, discard)
        raise
    return winner.result()


async def _end(tasks: list[asyncio.Task[T]], discard: Callable[[T], Awaitable[None]]) -> None:
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(found, BaseException):
            await discard(found)
