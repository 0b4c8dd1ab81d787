"""Measures how long an event loop runs nothing else while a test does its work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class Heartbeat:
    """`longest_gap_s`: the longest time between two rounds of the event loop."""

    longest_gap_s: float = 0.0

    async def run(self) -> None:
        """Beat until cancelled."""
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(0)
            now_s = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
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
