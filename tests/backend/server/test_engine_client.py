"""Streams of outputs: merging, cancellation, and the loss of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from backend.errors import EngineUnavailable, RequestError
from backend.server import engine_client
from backend.server.engine_client import EngineClient, RequestStream
from backend.server.engine_messages import Outputs
from backend.types import RequestTrace, StepOutput, TokenLogprobs
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


async def test_a_slow_reader_gets_everything_in_one_output() -> None:
    stream = RequestStream("a", on_cancel=lambda: None)
    record = TokenLogprobs(5, -0.5, [(5, -0.5)], 1)
    stream.push(StepOutput(request_id="a#0", token_ids=[4], num_cached_tokens=16, prompt_logprobs=[None]))
    for token in (5, 6):
        stream.push(StepOutput(request_id="a#0", token_ids=[token], logprobs=[record], num_cached_tokens=16))
    stream.push(StepOutput(request_id="a#0", finish_reason="stop", stop_token_id=2))
    (output,) = await collect(stream)
    assert output.token_ids == [4, 5, 6] and output.finish_reason == "stop" and output.stop_token_id == 2
    assert output.num_cached_tokens == 16 and output.request_id == "a"
    assert output.logprobs == [record, record] and output.prompt_logprobs == [None]


async def test_machine_seconds_of_a_prompt_wake_no_reader() -> None:
    """They are known also where the request ends before its first token."""
    stream = RequestStream("a", on_cancel=lambda: None)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.push(StepOutput(request_id="x", machine_s=0.5))
    await asyncio.sleep(0)
    assert not reader.done() and stream.machine_s == 0.5
    stream.push(StepOutput(request_id="x", token_ids=[1], machine_s=0.75))
    assert (await reader).token_ids == [1]
    stream.push(StepOutput(request_id="x", machine_s=1.5))
    stream.cancel()
    assert stream.machine_s == 1.5


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
    worker.send_signal(signal.SIGKILL)
    worker.exit_code()
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


async def test_a_lost_engine_and_one_that_sends_no_trace_hold_up_nothing(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.005})
    told: dict[str, list[RequestTrace | None]] = {"dies": [], "refused": []}
    streams = worker.client.submit([ask("dies", [1], 400)]) + worker.client.submit([ask("refused", [5000])])
    for stream in streams:
        stream.on_trace = told[stream.request_id].append
    await anext(streams[0])
    with pytest.raises(RequestError):
        await collect(streams[1])
    worker.send_signal(signal.SIGSTOP)
    streams[0].cancel()
    worker.send_signal(signal.SIGKILL)
    await asyncio.to_thread(worker.exit_code)
    async with asyncio.timeout(TIMEOUT_S):
        while not told["dies"]:
            await asyncio.sleep(0)
    assert told["dies"] == told["refused"] == [None]


async def test_traces_that_never_come_are_waited_for_in_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_client, "MAX_CANCELLED", 2)
    client = EngineClient("/none")
    told: list[RequestTrace | None] = []
    for wire_id in "abc":
        stream = RequestStream(wire_id, lambda: None)
        stream.on_trace = told.append
        client._expect_trace(wire_id, stream)
    trace = RequestTrace("", "", 1, 0.0)
    for wire_id in "abc":
        output = StepOutput(request_id=wire_id, finish_reason="abort", trace=trace)
        client.deliver(Outputs([output]))
    assert told == [None, trace, trace]
