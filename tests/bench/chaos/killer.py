"""The server of a chaos, and what kills its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil

from tests.bench.soak.monitor import ROLES
from tests.bench.targets import Target

SUPERVISOR = "supervisor"
RESTARTED = ("gateway worker", "engine", "encoder")
"""By the supervisor at once; an engine starts its sandboxes when it needs them."""
READY_LIMIT_S = 90.0
POLL_S = 0.1
MAX_STARTS = 10
"""Starts of one supervisor that exits at once."""


@dataclass(eq=False)
class Kill:
    """One kill -9; `ready_s` is how long the server then took to be ready."""

    role: str
    ready_s: float | None = None


@dataclass(eq=False)
class Killed:
    """A `penstock serve` that is started again, as an operator's init would, when its supervisor is gone."""

    target: Target
    log: Path
    kills: list[Kill] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and wait until it is ready. AssertionError when it is not in time."""
        self._launch()
        ready_s = await self.ready()
        assert ready_s is not None, f"not ready after {READY_LIMIT_S:g} s, see {self.log}"

    async def kill(self, role: str, draw: random.Random) -> None:
        """Kill a process of this role, if there is one, and note when the server is ready again."""
        pids = self.pids(role)
        if not pids:
            return
        kill = Kill(role)
        self.kills.append(kill)
        began_s = time.monotonic()
        os.kill(draw.choice(pids), signal.SIGKILL)
        if role == SUPERVISOR:
            assert self._process is not None
            await asyncio.to_thread(self._process.wait)
            self._launch()
        while role in RESTARTED and len(set(self.pids(role)) - set(pids)) == 0:
            if time.monotonic() > began_s + READY_LIMIT_S:
                return
            await asyncio.sleep(POLL_S)
        if await self.ready():
            kill.ready_s = time.monotonic() - began_s

    def pids(self, role: str) -> Sequence[int]:
        """The processes of this role."""
        assert self._process is not None
        if role == SUPERVISOR:
            return [self._process.pid]
        found = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if role in {ROLES.get(word) for word in child.cmdline()}:
                        found.append(child.pid)
        return found

    async def ready(self) -> float | None:
        """Seconds until the server was ready; None when it was not within the limit.

        It is started again if it could not listen: a dying worker still held the port.
        """
        began_s, num_starts = time.monotonic(), 0
        url = self.target.url.removesuffix("/v1") + "/health/ready"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
            while time.monotonic() < began_s + READY_LIMIT_S:
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
                    async with session.get(url) as response:
                        if response.status == 200:
                            return time.monotonic() - began_s
                assert self._process is not None
                if self._process.poll() is not None:
                    if (num_starts := num_starts + 1) > MAX_STARTS:
                        return None
                    self._launch()
                await asyncio.sleep(POLL_S)
        return None

    def close(self) -> int:
        """Drain it. Returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(60.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _launch(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(self.target.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.target.environment},
                start_new_session=True,
            )


async def kill_every(server: Killed, interval_s: float, until_s: float, draw: random.Random) -> None:
    """Kill one process after the other, each role as often as the others, until `until_s` (perf_counter)."""
    roles: list[str] = []
    next_s = time.perf_counter() + interval_s
    while next_s < until_s:
        await asyncio.sleep(next_s - time.perf_counter())
        if not roles:
            roles = sorted(set(ROLES.values()))
            draw.shuffle(roles)
        await server.kill(roles.pop(), draw)
        next_s = max(next_s + interval_s, time.perf_counter())
