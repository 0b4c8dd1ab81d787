from __future__ import annotations

import multiprocessing
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from backend.server.engine_client import EngineClient
from tests.backend.server.asking import TIMEOUT_S
from tests.backend.server.fake_engine_process import serve

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload([serve.__module__])  # torch is imported once for all of them


class Worker:
    """A fake engine process and a client that is connected to it."""

    def __init__(self, path: Path, options: dict[str, object]) -> None:
        self.path = path
        self._options = options
        self.client = EngineClient(path)
        self.log = path.with_suffix(".log")
        self.spawn()

    def spawn(self) -> None:
        arguments = (self.path, self.log, self._options)
        self.process = FORKING.Process(target=serve, args=arguments, daemon=True)
        self.process.start()

    def send_signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def exit_code(self) -> int | None:
        """Once it has ended."""
        self.process.join(TIMEOUT_S)
        return self.process.exitcode

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
        worker.process.kill()
        worker.exit_code()
