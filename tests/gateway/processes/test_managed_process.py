"""A process is started, restarted and ended, and never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.processes import restarts
from gateway.processes.managed_process import CannotServe, Command, ManagedProcess, Progress

ROOT = Path(__file__).parents[3]


def command(mode: str, stdin: bytes = b"") -> Command:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Command(f"fake {mode}", "tests.gateway.processes.fake_process", [mode], environment, lambda: stdin)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


@asynccontextmanager
async def running(mode: str, stdin: bytes = b"") -> AsyncIterator[tuple[ManagedProcess, list[Progress]]]:
    seen: list[Progress] = []
    process = ManagedProcess(command(mode, stdin), seen.append)
    task = asyncio.create_task(process.run())
    try:
        yield process, seen
    finally:
        await process.stop(5.0)
        await task


async def test_progress_is_reported_and_other_output_ignored() -> None:
    async with running("echo", b"done\n") as (process, seen):
        await until(lambda: process.phase == "done")
    assert seen == [Progress("starting"), Progress("loading", 0.5), Progress("done", 1.0)]


async def test_a_killed_process_is_restarted() -> None:
    async with running("wait") as (process, seen):
        for restarts in range(1, 3):
            await until(lambda: process.phase == "ready")
            assert process.subprocess is not None
            os.kill(process.subprocess.pid, signal.SIGKILL)
            await until(lambda restarts=restarts: process.num_restarts == restarts)
        await until(lambda: process.phase == "ready")
    assert [p.phase for p in seen].count("restarting") == 2


async def test_backoff_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(restarts, "LAST_BACKOFF_S", 0.04)
    waits: list[float] = []
    real = asyncio.wait_for

    async def recording(awaitable: object, timeout: float) -> object:
        waits.append(timeout)
        return await real(awaitable, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "wait_for", recording)
    async with running("crash") as (process, _):
        await until(lambda: process.num_restarts >= 4)
    assert waits[:4] == [0.01, 0.02, 0.04, 0.04]


async def test_the_same_failure_again_and_again_is_logged_with_its_cause_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarts, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(restarts, "LAST_BACKOFF_S", 0.01)
    async with running("fail") as (process, _):
        await until(lambda: process.num_restarts >= 5)
        repeated = process.restarts.repeated
    assert repeated is not None and repeated.count >= 5
    assert re.fullmatch(r"exit code 1: no memory, process \d+", repeated.cause)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING", "ERROR"]
    assert "fake fail has failed 3 times in a row (exit code 1: no memory" in caplog.text


async def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, calls = asyncio.create_subprocess_exec, 0

    async def start(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls < 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    async with running("wait") as (process, _):
        await until(lambda: process.phase == "ready")
    assert "cannot start: [Errno 11] Resource temporarily unavailable" in caplog.text


async def test_lines_are_sent_while_it_runs() -> None:
    process = ManagedProcess(command("echo"), lambda progress: None)
    process.send(b"too early\n")
    task = asyncio.create_task(process.run())
    await until(lambda: process.subprocess is not None)
    process.send(b"late\n")
    await until(lambda: process.phase == "late")
    await process.stop(5.0)
    await task
    process.send(b"too late\n")


async def test_refusal_at_the_first_start_is_final(capfd: pytest.CaptureFixture[str]) -> None:
    process = ManagedProcess(command("refuse"), lambda progress: None)
    with pytest.raises(CannotServe, match="^fake refuse cannot serve: no card 7; choose another$"):
        await asyncio.wait_for(process.run(), 10)
    assert "this cannot work" in capfd.readouterr().err


async def test_a_process_that_ignores_sigterm_is_killed() -> None:
    process = ManagedProcess(command("stubborn"), lambda progress: None)
    task = asyncio.create_task(process.run())
    await until(lambda: process.phase == "ready")
    await process.stop(0.1)
    await task
    assert process.subprocess is not None and process.subprocess.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
async def test_no_orphan_when_the_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.gateway.processes.fake_process",
        "parent",
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    grandchild = 0
    async with asyncio.timeout(10):
        while not grandchild:
            text = (await parent.stdout.readline()).decode()
            if '"phase": "' in text and text.split('"')[3].isdigit():
                grandchild = int(text.split('"')[3])
    assert is_alive(grandchild)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_alive(grandchild))
