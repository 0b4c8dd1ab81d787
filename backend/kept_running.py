"""Keeps work that must never end running: what fails is logged, counted and started again, with backoff."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable

FIRST_WAIT_S, MAX_WAIT_S = 0.1, 30.0
STEADY_S = 60.0
"""Work that ran for this long before it failed begins with the first wait again."""


async def keep_running(
    name: str, work: Callable[[], Awaitable[None]], logger: logging.Logger, on_restart: Callable[[], None]
) -> None:
    """Run `work` until it returns, again after each exception. `name`: for the log."""
    wait_s = FIRST_WAIT_S
    while True:
        started_s = time.monotonic()
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - any defect in it must not end it
            if time.monotonic() - started_s > STEADY_S:
                wait_s = FIRST_WAIT_S
            # Not its message: that may quote what is stored.
            frames = "".join(traceback.format_tb(error.__traceback__))
            kind = type(error).__name__
            logger.error("%s failed with %s, starting again in %.1f s, at\n%s", name, kind, wait_s, frames)
            on_restart()
        else:
            return
        await asyncio.sleep(wait_s)
        wait_s = min(MAX_WAIT_S, 2 * wait_s)
