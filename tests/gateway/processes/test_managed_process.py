"""A process is started, reported, started again, ended; and never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.processes import managed_process as child_module
from gateway.processes.managed_process import CannotServe, Child, Command, Progress

ROOT = Path(__file__).parents[3]


def command(mode: str, stdin: bytes = b"") -> Command:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return Command(f"stand-in {mode}", "tests.gateway.stand_in", [mode], environment, stdin)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in {"Z", "X"}


@asynccontextmanager
async def running(mode: str, stdin: bytes = b"") -> AsyncIterator[tuple[Child, list[Progress]]]:
    seen: list[Progress] = []
    child = Child(command(mode, stdin), seen.append)
    task = asyncio.create_task(child.run())
    try:
        yield child, seen
    finally:
        await child.stop(5.0)
        await task


async def test_progress_is_reported_and_chatter_ignored() -> None:
    async with running("echo", b"done\n") as (child, seen):
        await until(lambda: child.phase == "done")
    assert seen == [Progress("starting"), Progress("loading", 0.5), Progress("done", 1.0)]


async def test_killed_process_is_started_again() -> None:
    async with running("wait") as (child, seen):
        for restarts in range(1, 3):
            await until(lambda: child.phase == "ready")
            assert child.process is not None
            os.kill(child.process.pid, signal.SIGKILL)
            await until(lambda restarts=restarts: child.restarts == restarts)
        await until(lambda: child.phase == "ready")
    assert [p.phase for p in seen].count("restarting") == 2


async def test_backoff_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(child_module, "LAST_BACKOFF_S", 0.04)
    waits: list[float] = []
    real = asyncio.wait_for

    async def recording(awaitable: object, timeout: float) -> object:
        waits.append(timeout)
        return await real(awaitable, timeout)  # type: ignore[arg-type]

    monkeypatch.setattr(asyncio, "wait_for", recording)
    async with running("crash") as (child, _):
        await until(lambda: child.restarts >= 4)
    assert waits[:4] == [0.01, 0.02, 0.04, 0.04]


async def test_refusal_at_the_first_start_is_final(capfd: pytest.CaptureFixture[str]) -> None:
    child = Child(command("refuse"), lambda progress: None)
    with pytest.raises(CannotServe):
        await asyncio.wait_for(child.run(), 10)
    assert "this cannot work" in capfd.readouterr().err


async def test_stubborn_process_is_killed() -> None:
    child = Child(command("stubborn"), lambda progress: None)
    task = asyncio.create_task(child.run())
    await until(lambda: child.phase == "ready")
    await child.stop(0.1)
    await task
    assert child.process is not None and child.process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
async def test_no_orphan_when_the_parent_is_killed() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.gateway.stand_in",
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
