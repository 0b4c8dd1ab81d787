"""Threads that tenants take turns in: what one has asked for a thousand times delays another by one turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Lane:
    """A few threads. Use it inside one event loop."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, name)
        self._num_free = num_threads
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by tenant

    async def run(self, work: Callable[[], T], tenant: str) -> T:
        """Run `work` in a thread, at the tenant's turn. Cancelling the caller does not interrupt it."""
        await self._turn(tenant)
        loop = asyncio.get_running_loop()
        running = self._threads.submit(work)
        running.add_done_callback(lambda _: _call(loop, self._give))
        return await asyncio.wrap_future(running)

    async def close(self) -> None:
        """Wait for what runs, and end the threads."""
        await asyncio.to_thread(self._threads.shutdown)

    async def _turn(self, tenant: str) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give()
            raise

    def _give(self) -> None:
        """Give a free thread to the tenant that has waited longest since its last turn."""
        while self._waiting:
            tenant, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(callback)
