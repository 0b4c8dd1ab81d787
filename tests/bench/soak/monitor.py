"""What a soak watches: memory and file descriptors of each process, pages and requests of the server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.bench.targets import Target

ROLES = {
    "gateway.cli": "supervisor",
    "gateway.wiring.worker": "gateway worker",
    "backend.server.engine_process": "engine",
    "backend.server.encoder_process": "encoder",
    "backend.structured.sandbox_process": "grammar sandbox",
}
"""By the module that a process runs; processes with one role are added up."""


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    resident_bytes: int
    num_files: int


@dataclass(frozen=True)
class Snapshot:
    """The server at one moment; `processes` by role."""

    time_s: float
    processes: dict[str, Process]
    used_pages: int
    in_flight: int

    @property
    def resident_bytes(self) -> int:
        """Resident memory of all processes together."""
        return sum(process.resident_bytes for process in self.processes.values())

    @property
    def num_files(self) -> int:
        """Open file descriptors of all processes together."""
        return sum(process.num_files for process in self.processes.values())


class Monitor:
    """Takes snapshots of the server with process id `pid`."""

    def __init__(self, target: Target, pid: int, session: aiohttp.ClientSession) -> None:
        self.snapshots: list[Snapshot] = []
        self._root_url = target.url.removesuffix("/v1")
        self._server = psutil.Process(pid)
        self._session = session

    @contextlib.asynccontextmanager
    async def watching(self, interval_s: float) -> AsyncIterator[None]:
        """Take a snapshot every `interval_s` meanwhile."""
        task = asyncio.create_task(self._watch(interval_s))
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self, interval_s: float) -> None:
        while True:
            self.snapshots.append(await self.snapshot())
            await asyncio.sleep(interval_s)

    async def snapshot(self) -> Snapshot:
        """Read /proc and /metrics now."""
        async with self._session.get(self._root_url + "/metrics") as response:
            page = await response.text()
        values: Counter[str] = Counter()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                values[sample.name] += sample.value  # type: ignore[assignment]
        used = values["penstock_engine_total_pages"] - values["penstock_engine_free_pages"]
        in_flight = int(values["penstock_requests_in_flight"])
        return Snapshot(time.perf_counter(), self._processes(), int(used), in_flight)

    def _processes(self) -> dict[str, Process]:
        found: dict[str, Process] = {}
        for process in (self._server, *self._server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                role = next((ROLES[word] for word in process.cmdline() if word in ROLES), process.name())
                so_far = found.get(role, Process(0, 0))
                resident_bytes = so_far.resident_bytes + process.memory_info().rss
                found[role] = Process(resident_bytes, so_far.num_files + process.num_fds())
        return found
