"""The connection that both clients keep up: readiness, heartbeats, and processes that are not there."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from backend.errors import EngineError, EngineUnavailable, QueueFull
from backend.server.client import PendingCalls
from backend.server.engine_client import EngineClient
from backend.server.engine_messages import EngineStats, Heartbeat, Hello
from tests.backend.server.asking import TIMEOUT_S, ask
from tests.backend.server.conftest import StartWorker


async def test_one_long_silence_is_not_held_against_the_next_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("backend.server.client.time.monotonic", lambda: now_s)
    client = EngineClient(tmp_path / "none")
    client.deliver(Hello("fake", "/none", "r", 512, 1000, 64, "cpu", "float32"))
    now_s = 15.0  # a step that took long
    client.deliver(Heartbeat(1, EngineStats()))
    now_s = 30.0
    assert client.ready, "the next step may take as long"
    for beat in range(600):
        now_s = 30.0 + beat / 2
        client.deliver(Heartbeat(beat, EngineStats()))
    now_s += 6.0
    assert not client.ready, "for minutes it has beaten twice a second; now it hangs"


async def test_without_an_engine(tmp_path: Path) -> None:
    client = EngineClient(tmp_path / "none.sock")
    await client.start()
    assert not client.ready and client.heartbeat_age_s == float("inf")
    with pytest.raises(EngineUnavailable, match="none.sock"):
        client.submit([ask("a", [1])])
    with pytest.raises(EngineUnavailable):
        await client.wait_ready(0.1)
    await client.close()


async def test_an_engine_that_talks_nonsense_is_left(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x01\xc1")
        await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_unix_server(nonsense, tmp_path / "bad.sock")
    client = EngineClient(tmp_path / "bad.sock")
    await client.start()
    async with asyncio.timeout(TIMEOUT_S):
        await ended.wait()
    assert not client.ready
    await client.close()
    server.close()
    await server.wait_closed()


async def test_heartbeat_stops_when_the_loop_hangs(start_worker: StartWorker) -> None:
    worker = await start_worker()
    assert worker.client.ready and worker.client.heartbeat_age_s < 5
    worker.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(TIMEOUT_S):
        while worker.client.ready:
            await asyncio.sleep(0.1)
    assert worker.client.heartbeat_age_s >= 5
    worker.send_signal(signal.SIGCONT)
    await worker.client.wait_ready(TIMEOUT_S)


async def test_pending_calls_get_their_answer_their_error_or_none() -> None:
    calls: PendingCalls[str] = PendingCalls()
    tasks = [asyncio.create_task(calls.answer(call_id)) for call_id in "abcd"]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.sleep(0)
    calls.settle("a", "answer")
    calls.settle("b", QueueFull("full", 1.0))
    calls.settle("c", "too late")
    calls.fail_all(lambda: EngineError("gone"))
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[0] == "answer"
    assert [type(result) for result in results[1:]] == [QueueFull, asyncio.CancelledError, EngineError]
    assert not calls
