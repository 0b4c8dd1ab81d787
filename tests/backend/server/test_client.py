from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path

import pytest

from backend.errors import EngineUnavailable
from backend.server.client import EngineClient, RequestStream
from backend.server.messages import EngineStats, Heartbeat, Hello
from backend.types import StepOutput, TokenLogprobs
from tests.backend.server.asking import (
    TIMEOUT_S,
    ask,
    collect,
    expected_ignoring_eos,
    text,
    until,
    until_ended,
)
from tests.backend.server.conftest import StartWorker


async def test_a_slow_reader_gets_everything_in_one_output(tmp_path: Path) -> None:
    stream = RequestStream(EngineClient(tmp_path / "none"), "a#0", "a")
    record = TokenLogprobs(5, -0.5, [(5, -0.5)], 1)
    stream._push(StepOutput(request_id="a#0", token_ids=[4], num_cached_tokens=16, prompt_logprobs=[None]))
    for token in (5, 6):
        stream._push(StepOutput(request_id="a#0", token_ids=[token], logprobs=[record], num_cached_tokens=16))
    stream._push(StepOutput(request_id="a#0", finish_reason="stop", stop_token_id=2))
    (output,) = await collect(stream)
    assert output.token_ids == [4, 5, 6] and output.finish_reason == "stop" and output.stop_token_id == 2
    assert output.num_cached_tokens == 16 and output.request_id == "a"
    assert output.logprobs == [record, record] and output.prompt_logprobs == [None]


async def test_one_long_silence_is_not_held_against_the_next_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("backend.server.client.time.monotonic", lambda: now_s)
    client = EngineClient(tmp_path / "none")
    client._receive(Hello("fake", "/none", "r", 512, 1000, 64, "cpu", "float32"))
    now_s = 15.0  # a step that took long
    client._receive(Heartbeat(1, EngineStats()))
    now_s = 30.0
    assert client.ready, "the next step may take as long"
    for beat in range(600):
        now_s = 30.0 + beat / 2
        client._receive(Heartbeat(beat, EngineStats()))
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


async def test_cancelling_the_reader_cancels_the_request(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.005})
    (stream,) = worker.client.submit([ask("a", [1, 2], 400)])
    reader = asyncio.create_task(collect(stream))
    await until(worker.client, lambda stats: stats.num_running == 1)
    reader.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reader
    await until_ended(worker.client, abort=1)


async def test_killed_engine_raises_and_its_successor_serves(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.005})
    streams = worker.client.submit([ask(str(i), [i], 400) for i in range(20)])
    await anext(streams[0])
    worker.process.send_signal(signal.SIGKILL)
    worker.process.wait(TIMEOUT_S)
    for stream in streams:
        with pytest.raises(EngineUnavailable):
            await collect(stream)
    assert not worker.client.ready
    with pytest.raises(EngineUnavailable):
        worker.client.submit([ask("a", [1])])
    worker.spawn()
    await worker.client.wait_ready(TIMEOUT_S)
    (stream,) = worker.client.submit([ask("a", [3, 4], 10)])
    assert await text(stream) == expected_ignoring_eos([3, 4], 10)


async def test_heartbeat_stops_when_the_loop_hangs(start_worker: StartWorker) -> None:
    worker = await start_worker()
    assert worker.client.ready and worker.client.heartbeat_age_s < 5
    worker.process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(TIMEOUT_S):
        while worker.client.ready:
            await asyncio.sleep(0.1)
    assert worker.client.heartbeat_age_s >= 5
    worker.process.send_signal(signal.SIGCONT)
    await worker.client.wait_ready(TIMEOUT_S)
