"""Streams of outputs: merging, cancellation, and the loss of the engine."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from backend.errors import EngineUnavailable
from backend.server.engine_client import RequestStream
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
