from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from backend.server.engine_client import EngineClient


class Worker:
    """A fake engine process and a client that is connected to it."""

    def __init__(self, path: Path, options: dict[str, object]) -> None:
        self.path = path
        self._options = json.dumps(options)
        self.client = EngineClient(path)
        self.log = path.with_suffix(".log")
        self.spawn()

    def spawn(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.backend.server.fake_engine_process",
            str(self.path),
            self._options,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)

    async def ready(self) -> None:
        await self.client.start()
        await self.client.wait_ready(20)


StartWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def start_worker(tmp_path: Path) -> AsyncIterator[StartWorker]:
    workers: list[Worker] = []

    async def start(**options: object) -> Worker:
        worker = Worker(tmp_path / f"{len(workers)}.sock", options)
        workers.append(worker)
        await worker.ready()
        return worker

    yield start
    for worker in workers:
        await worker.client.close()
        with contextlib.suppress(ProcessLookupError):
            worker.process.kill()
        worker.process.wait(10)
