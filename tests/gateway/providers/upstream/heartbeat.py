"""Measures how much work an event loop does at a time while a test runs on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class Heartbeat:
    """`longest_turn_s`: the most CPU time between two turns of the loop, whatever else the machine does."""

    longest_turn_s: float = 0.0

    async def run(self) -> None:
        """Beat until cancelled."""
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.longest_turn_s = max(self.longest_turn_s, now_s - last_s)
            last_s = now_s


@asynccontextmanager
async def heartbeat() -> AsyncIterator[Heartbeat]:
    """Beats while the block runs."""
    beat = Heartbeat()
    task = asyncio.create_task(beat.run())
    await asyncio.sleep(0)
    try:
        yield beat
        await asyncio.sleep(0)
    finally:
        task.cancel()
