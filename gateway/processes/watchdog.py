"""Kills a process whose heartbeats have stopped; `ManagedProcess.run` starts it again."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NoReturn, Protocol

from gateway.processes.hang_detector import HangDetector
from gateway.processes.managed_process import SERVING_PHASES, ManagedProcess

logger = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.5


class Heartbeats(Protocol):
    """What is known of a process's heartbeats."""

    @property
    def ready(self) -> bool:
        """True while heartbeats arrive."""
        ...

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the last one."""
        ...


async def kill_when_hung(process: ManagedProcess, heartbeats: Heartbeats) -> NoReturn:
    """Watch each start of the process from its first heartbeat on: until then it may take its time."""
    detector = HangDetector()
    watched = None
    while True:
        await asyncio.sleep(WATCH_INTERVAL_S)
        running = process.subprocess
        if process.is_stopping or process.phase not in SERVING_PHASES:
            continue
        if running is None or running.returncode is not None:
            continue
        if watched is not running:
            # An engine is watched from its first answer on: connecting takes a moment.
            detector.reset()
            watched = running if heartbeats.ready else None
        elif detector.poll(running.pid, heartbeats.heartbeat_age_s, time.monotonic()):
            logger.error("%s hangs: killing it", process.command.name)
            process.kill("hung, it sent no heartbeat")
            watched = None
