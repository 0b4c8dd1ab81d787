"""Copies of requests to other models, as one gateway worker sends them, whatever the policies' version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine

from policies.routes import Shadow

MAX_CONCURRENT = 16
"""Shadow requests of one worker at a time, whatever the policies allow."""
_MINUTE_S = 60


class Shadows:
    """Counts the ones that run and the ones of this minute: a reload of the policies forgets neither."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._sent: dict[str, tuple[float, int]] = {}  # by model: start of its minute, requests in it

    def try_count(self, shadow: Shadow) -> bool:
        """Count one more of this minute; False beyond the rate, or while too many run."""
        if len(self._tasks) >= MAX_CONCURRENT:
            return False
        now_s = time.monotonic()
        began_s, count = self._sent.get(shadow.model, (now_s, 0))
        if now_s - began_s >= _MINUTE_S:
            began_s, count = now_s, 0
        self._sent[shadow.model] = (began_s, count + 1)
        return count < shadow.max_per_minute

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run a request beside all others."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
