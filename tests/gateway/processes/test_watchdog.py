"""A process that stops sending heartbeats is killed and restarted; a slow start is not a hang."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.processes import hang_detector, watchdog
from gateway.processes.managed_process import ManagedProcess
from gateway.processes.watchdog import kill_when_hung
from tests.gateway.processes.test_managed_process import command, is_alive, running, until


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_detector, "SILENT_AFTER_S", 1.0)
    monkeypatch.setattr(hang_detector, "HUNG_AFTER_S", 0.5)
    monkeypatch.setattr(watchdog, "WATCH_INTERVAL_S", 0.1)


@asynccontextmanager
async def watched(process: ManagedProcess) -> AsyncIterator[None]:
    task = asyncio.create_task(kill_when_hung(process, process))
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_stopped_process_is_replaced_each_time(caplog: pytest.LogCaptureFixture) -> None:
    async with running("beat") as (process, _), watched(process):
        for num_restarts in range(2):
            await until(lambda: process.phase == "ready")
            assert process.num_restarts == num_restarts and process.subprocess is not None
            pid = process.subprocess.pid
            os.kill(pid, signal.SIGSTOP)
            await until(lambda pid=pid: not is_alive(pid))
            await until(lambda n=num_restarts: process.num_restarts == n + 1)
        await until(lambda: process.phase == "ready")
    assert caplog.text.count("fake beat hangs: killing it") == 2
    assert "killed by SIGKILL: hung, it sent no heartbeat" in caplog.text


async def test_a_silent_start_is_no_hang() -> None:
    async with running("slow") as (process, _), watched(process):
        await until(lambda: process.phase == "starting" and process.heartbeat_age_s > 3)
        process.send(b"go on\n")
        await until(lambda: process.phase == "ready")
        assert process.num_restarts == 0


async def test_a_process_that_is_asked_to_exit_has_the_time_it_was_given() -> None:
    process = ManagedProcess(command("stubborn"), lambda progress: None)  # no heartbeats, deaf to SIGTERM
    task = asyncio.create_task(process.run())
    await until(lambda: process.phase == "ready")
    async with watched(process):
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        await process.stop(2.5)
        assert loop.time() - started_s >= 2.5
    await task
