"""The engine process over a real socket, with a fake runner: outputs, rejections, and no leaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
from pathlib import Path

import msgspec
import pytest

from backend.config import EngineConfig
from backend.engine.engine import Engine
from backend.errors import EngineUnavailable, HandedBack, PromptTooLong, QueueFull, RequestError
from backend.server.engine_client import EngineClient, RequestStream
from backend.server.engine_messages import Hello, Submit
from backend.server.engine_server import EngineServer
from backend.server.wire import FrameReader, encode_frame
from backend.types import RequestTrace
from tests.backend.engine.fake_runner import FakeRunner, expected
from tests.backend.server.asking import (
    TIMEOUT_S,
    ask,
    collect,
    expected_ignoring_eos,
    text,
    until,
    until_ended,
)
from tests.backend.server.conftest import StartWorker, Worker
from tests.backend.server.listening import listen


async def test_submit_streams_tokens_and_ends(start_worker: StartWorker) -> None:
    worker = await start_worker()
    assert worker.client.hello is not None and worker.client.hello.vocab_size == 1000
    first, second = worker.client.submit([ask("same", [5, 6, 7], 20), ask("same", [8], 5)])
    outputs = await collect(first)
    assert [t for o in outputs for t in o.token_ids] == expected([5, 6, 7], 20)
    assert outputs[-1].finish_reason == "length" and {o.request_id for o in outputs} == {"same"}
    assert await text(second) == expected([8], 5)
    await until_ended(worker.client, length=2)
    stats = worker.client.stats
    assert stats.generated_tokens_total == 25 and stats.ttft_s[-1] == 2 and stats.inter_token_s[-1] == 23


async def test_a_request_that_asks_gets_its_trace_at_its_end(start_worker: StartWorker) -> None:
    worker = await start_worker()
    asking = msgspec.structs.replace(ask("a", [5, 6, 7], 20), wants_trace=True)
    stream, other = worker.client.submit([asking, ask("b", [8], 5)])
    told, other_told = traces_of(stream), traces_of(other)
    await text(stream)
    await text(other)
    (trace,) = told
    assert trace is not None and other_told == [None]
    assert (trace.num_prompt_tokens, trace.num_output_tokens, trace.finish_reason) == (3, 20, "length")
    assert trace.arrival_s <= trace.scheduled_s <= trace.first_token_s <= trace.finished_s
    assert [chunk[1:] for chunk in trace.chunks] == [(0, 3)] or len(trace.chunks) == 3


def traces_of(stream: RequestStream) -> list[RequestTrace | None]:
    """What the stream will be told of its trace."""
    told: list[RequestTrace | None] = []
    stream.on_trace = told.append
    return told


async def test_the_trace_of_a_cancelled_request_comes_later(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.005}, config={"max_running": 1})
    client = worker.client
    asked = [msgspec.structs.replace(ask(name, [5, 6, 7], 400), wants_trace=True) for name in "abc"]
    streams = client.submit([*asked, ask("d", [8], 400)])
    told = [traces_of(stream) for stream in streams]
    await anext(streams[0])
    for stream in streams:
        stream.cancel()
    async with asyncio.timeout(TIMEOUT_S):
        while not all(told):
            await client.wait_message()
    ran, *waited = [trace for (trace,) in told[:3] if trace is not None]
    assert ran.finish_reason == "abort" and ran.num_output_tokens >= 1 and ran.chunks
    assert ran.arrival_s <= ran.scheduled_s <= ran.first_token_s <= ran.finished_s
    assert [(each.scheduled_s, each.finish_reason) for each in waited] == [(-1.0, "abort")] * 2
    assert told[3] == [None]
    await until_ended(client, abort=4)
    assert client._cancelled == {}


async def test_what_is_handed_back_has_its_trace_too(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.02})
    (stream,) = worker.client.submit([msgspec.structs.replace(ask("a", [1, 2], 300), wants_trace=True)])
    told = traces_of(stream)
    await anext(stream)
    worker.client.drain(0.05)
    with pytest.raises(HandedBack):
        await collect(stream)
    await asyncio.to_thread(worker.exit_code)
    async with asyncio.timeout(TIMEOUT_S):
        while worker.client.hello is not None:
            await asyncio.sleep(0)
    assert [trace.finish_reason for trace in told if trace is not None] == ["abort"]


async def test_many_clients_at_once(start_worker: StartWorker) -> None:
    worker = await start_worker()
    clients = [EngineClient(worker.path) for _ in range(4)]
    for client in clients:
        await client.start()
        await client.wait_ready(TIMEOUT_S)
    streams = [
        client.submit([ask("r", [10 + i, j], 10)])[0] for i, client in enumerate(clients) for j in range(5)
    ]
    texts = await asyncio.gather(*map(text, streams))
    assert texts == [expected([10 + i, j], 10) for i in range(4) for j in range(5)]
    for client in clients:
        await client.close()


async def test_cancel_frees_pages(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.005})
    (stream,) = worker.client.submit([ask("a", list(range(100)), 400)])
    await anext(stream)
    await until(worker.client, lambda stats: stats.num_running == 1)
    stream.cancel()
    stream.cancel()
    await until_ended(worker.client, abort=1)
    assert worker.client.stats.generated_tokens_total < 400
    assert [o async for o in stream if o.finish_reason] == []


async def test_disconnect_aborts_everything_of_that_client(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.005})
    other = EngineClient(worker.path)
    await other.start()
    await other.wait_ready(TIMEOUT_S)
    lost = other.submit([ask(str(i), [i, i], 400) for i in range(6)])
    (kept,) = worker.client.submit([ask("kept", [7, 7], 60)])
    await anext(lost[0])
    await other.close()
    with pytest.raises(EngineUnavailable):
        await collect(lost[1])
    assert await text(kept) == expected_ignoring_eos([7, 7], 60)
    await until_ended(worker.client, abort=6, length=1)


async def test_refusals_have_their_types(start_worker: StartWorker) -> None:
    worker = await start_worker(
        config={"max_queue": 2, "max_running": 1, "max_batch_tokens": 16}, runner={"step_s": 0.01}
    )
    client = worker.client
    (too_long,) = client.submit([ask("a", [1] * 600)])
    with pytest.raises(PromptTooLong):
        await collect(too_long)
    (invalid,) = client.submit([ask("a", [5000])])
    with pytest.raises(RequestError) as caught:
        await collect(invalid)
    assert caught.value.param == "prompt"
    (running,) = client.submit([ask("a", [1], 100)])
    await anext(running)
    many = client.submit([ask(str(i), [i], 5) for i in range(3)])
    for stream in many:  # all or none
        with pytest.raises(QueueFull) as full:
            await collect(stream)
        assert full.value.retry_after_s > 0
    fitting = client.submit([ask(str(i), [i], 5) for i in range(2)])
    assert [len(t) for t in await asyncio.gather(*map(text, fitting))] == [5, 5]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xa5" + random.Random("garbage").randbytes(4095),  # as a length, more than any frame has
        b"\xff\xff\xff\xff",
        encode_frame(b"\xc1"),
        encode_frame(msgspec.msgpack.encode({"type": "x"})),
    ],
    ids=["random", "huge length", "no msgpack", "unknown message"],
)
async def test_garbage_ends_only_its_connection(start_worker: StartWorker, garbage: bytes) -> None:
    worker = await start_worker()
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(worker.path))
        raw.settimeout(TIMEOUT_S)
        raw.sendall(garbage)
        with contextlib.suppress(ConnectionResetError):
            while raw.recv(65536):
                pass
    (stream,) = worker.client.submit([ask("a", [5, 6], 4)])
    assert await text(stream) == expected_ignoring_eos([5, 6], 4)
    assert worker.process.is_alive() and "Traceback" not in worker.log.read_text()
    assert "malformed frame" in worker.log.read_text()


async def test_reader_that_does_not_read_is_dropped(start_worker: StartWorker) -> None:
    worker = await start_worker(
        limits={"max_buffered_bytes": 2000}, runner={"num_pages": 4000, "max_model_tokens": 60_000}
    )
    with socket.socket(socket.AF_UNIX) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(str(worker.path))
        requests = [ask(str(i), [i, 1], 600) for i in range(64)]
        raw.sendall(encode_frame(msgspec.msgpack.encode(Submit(requests))))
        await until_ended(worker.client, abort=64)


async def test_sigterm_finishes_what_runs_and_refuses_more(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.01})
    (stream,) = worker.client.submit([ask("a", [1, 2], 60)])
    await anext(stream)
    worker.send_signal(signal.SIGTERM)
    await wait_for_log(worker, "draining")
    (late,) = worker.client.submit([ask("late", [1])])
    with pytest.raises(HandedBack):
        await collect(late)
    assert worker.client.is_draining and not worker.client.ready
    outputs = await collect(stream)
    assert outputs[-1].finish_reason == "length"
    assert await asyncio.to_thread(worker.exit_code) == 0


@pytest.mark.parametrize("by_message", [False, True])
async def test_what_runs_too_long_is_handed_back_and_goes_on_elsewhere(
    start_worker: StartWorker, by_message: bool
) -> None:
    limit_s = 60.0 if by_message else 0.2
    workers = [
        await start_worker(runner={"step_s": 0.02}, limits={"drain_limit_s": limit_s}) for _ in range(2)
    ]
    client, other = (worker.client for worker in workers)
    short, long = client.submit([ask("short", [3], 3), ask("long", [1, 2], 300)])
    await collect(short)
    if by_message:
        client.drain(0.2)
    else:
        workers[0].send_signal(signal.SIGTERM)
    received: list[int] = []
    with pytest.raises(HandedBack):
        async for output in long:
            received += output.token_ids
    assert 0 < len(received) < 300 and not client.num_streams
    assert await asyncio.to_thread(workers[0].exit_code) == 0
    request = msgspec.structs.replace(ask("long", [1, 2], 300), resume_token_ids=received)
    received += await text(*other.submit([request]))
    assert received == expected([1, 2], 300)


async def wait_for_log(worker: Worker, word: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while word not in worker.log.read_text():
            await asyncio.sleep(0.02)


async def test_a_broken_engine_ends_its_process(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"poison": 666})
    streams = worker.client.submit([ask("a", [666]), ask("b", [666, 1])])
    for stream in streams:
        with pytest.raises(EngineUnavailable):
            await collect(stream)
    assert await asyncio.to_thread(worker.exit_code) != 0


async def test_a_dying_engine_hangs_up_before_its_process_ends(tmp_path: Path) -> None:
    path, runner = tmp_path / "e.sock", FakeRunner(poison=666)
    engine = Engine(EngineConfig(model="fake", checkpoint="/none"), runner)
    server = EngineServer(engine, Hello("fake", "/none", "r", 512, 1000, 64, "cpu", "float32"), listen(path))
    reader, writer = await asyncio.open_unix_connection(str(path))
    requests = [ask("a", [666]), ask("b", [666, 1])]
    writer.write(encode_frame(msgspec.msgpack.encode(Submit(requests))))
    with pytest.raises(RuntimeError, match="poisoned"):
        await asyncio.to_thread(server.run)
    async with asyncio.timeout(TIMEOUT_S):
        while await reader.read(65536):  # what was sent before, then the end
            pass
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        await asyncio.open_unix_connection(str(path))
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_one_frame_per_step_and_client(start_worker: StartWorker) -> None:
    worker = await start_worker(config={"max_running": 8})
    reader, writer = await asyncio.open_unix_connection(str(worker.path))
    requests = [ask(str(i), [i + 1, 1], 10) for i in range(8)]
    writer.write(encode_frame(msgspec.msgpack.encode(Submit(requests))))
    frames, finished = FrameReader(), 0
    sizes: list[int] = []
    async with asyncio.timeout(TIMEOUT_S):
        while finished < 8:
            for body in frames.feed(await reader.read(65536)):
                message = msgspec.msgpack.decode(body)
                if message["type"] == "outputs":
                    sizes.append(len(message["outputs"]))
                    finished += sum("finish_reason" in output for output in message["outputs"])
    assert sizes == [8] * 11  # the first says that all have begun
    writer.close()
    await writer.wait_closed()


async def test_what_runs_is_known_before_the_step_that_ends_the_process(start_worker: StartWorker) -> None:
    worker = await start_worker(runner={"step_s": 0.01, "deadly": 999}, config={"max_running": 2})
    (running,) = worker.client.submit([ask("running", [5], 300)])
    await anext(running)
    deadly, waiting = worker.client.submit([ask("deadly", [999], 5), ask("waiting", [6], 5)])
    with pytest.raises(EngineUnavailable):
        await collect(deadly)
    assert [each.has_begun for each in (running, deadly, waiting)] == [True, True, False]
