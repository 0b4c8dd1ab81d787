from __future__ import annotations

import asyncio
import gc
import logging
from weakref import ref

import pytest

from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.asgi_endpoint import RouteBuilder
from gateway.web.http_call import HttpCall
from gateway.web.http_protocol import MAX_WAITING_BYTES
from tests.gateway.web.conftest import Serve
from tests.gateway.web.raw import TIMEOUT_S, request
from tests.gateway.web.test_asgi_endpoint import FakeResource, app_with

X = request("GET", "/x")


class Handler:
    """Answers in two pieces, the second when it may."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def __call__(self, call: HttpCall) -> None:
        await call.start_stream()
        await call.write(b"data: 1\n\n")
        await self.may_go_on.wait()
        await call.end_stream(b"data: 2\n\n")


async def test_drain_finishes_what_is_open(serve: Serve) -> None:
    handler, log = Handler(), []
    server = serve(app_with(handler, FakeResource("a", log)))
    idle, silent, busy = await server.connect(), await server.connect(), await server.connect()
    handler.may_go_on.set()
    await idle.send(X)
    await idle.read_until(b"0\r\n\r\n")
    handler.may_go_on.clear()
    await busy.send(X + X)
    await busy.read_until(b"data: 1")
    server.server.drain()
    assert await idle.reader.read() == b"" and await silent.reader.read() == b""
    with pytest.raises(ConnectionRefusedError):
        await server.connect()
    assert log == ["start a"]
    handler.may_go_on.set()
    rest = await busy.reader.read()
    assert rest.count(b"data: 2") == 2 and b"connection: close" in rest
    await server.task
    assert log == ["start a", "close a"]


async def test_requests_that_outlast_the_drain_get_an_error(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(app_with(Handler()), drain_timeout_s=0.2)
    client = await server.connect()
    await client.send(X)
    await client.read_until(b"data: 1")
    with caplog.at_level(logging.ERROR):
        server.server.drain()
        rest = await client.reader.read()
    assert b"shutting down" in rest and rest.endswith(b"0\r\n\r\n")
    await server.task
    assert "1 requests were not finished" in caplog.text


async def test_a_second_drain_waits_for_nothing(serve: Serve) -> None:
    log: list[str] = []
    server = serve(app_with(Handler(), FakeResource("a", log)), drain_timeout_s=60)
    client = await server.connect()
    await client.send(X)
    await client.read_until(b"data: 1")
    server.server.drain()
    server.server.drain()
    await asyncio.wait_for(server.task, 5)
    assert log == ["start a", "close a"]


async def test_a_resource_that_cannot_start(serve: Serve) -> None:
    server = serve(app_with(Handler(), FakeResource("a", [], fails=True)))
    with pytest.raises(RuntimeError, match="a cannot start"):
        await server.task
    server.task = asyncio.create_task(asyncio.sleep(0))


async def test_a_slow_reader_slows_the_sender(serve: Serve) -> None:
    """`send` waits: what a client does not read stays bounded."""
    written = 0

    async def endless(call: HttpCall) -> None:
        nonlocal written
        await call.start_stream()
        while True:
            await call.write(b"x" * 10_000)
            written += 10_000

    server = serve(app_with(endless))
    client = await server.connect()
    await client.send(X)
    before = -1
    async with asyncio.timeout(10):
        while before != written:
            before = written
            await asyncio.sleep(0.1)
    assert written < 20_000_000  # socket buffers, and ours
    await client.close()
    async with asyncio.timeout(10):
        while server.server.state.tasks:  # once the client is gone, `send` raises
            await asyncio.sleep(0.01)


async def test_the_access_log_shows_the_path_as_sent_and_no_query(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    handler.may_go_on.set()
    server = serve(app_with(handler))
    server.server.state.has_access_log = True
    client = await server.connect()
    with caplog.at_level(logging.INFO, "penstock.access"):
        await client.send(request("GET", "/x%0aforged?key=secret"))
        await client.read_until(b"\r\n\r\n")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "penstock.access"]
    assert '"GET /x%0aforged HTTP/1.1" ' in line and "secret" not in line


class Answer:
    """Something large that a handler holds while it writes."""


async def test_what_a_slow_client_did_not_read_is_freed_without_the_garbage_collector(serve: Serve) -> None:
    held: list[ref[object]] = []
    is_over = asyncio.Event()

    async def endless(call: HttpCall) -> None:
        answer = Answer()
        held.append(ref(answer))
        try:
            await call.start_stream()
            while True:
                await call.write(bytes(1 << 20))
        finally:
            is_over.set()

    server = serve(app_with(endless))
    gc.collect()
    gc.disable()
    try:
        client = await server.connect()
        await client.send(X)
        await client.read_until(b"\0")
        client.writer.transport.abort()
        await is_over.wait()
        async with asyncio.timeout(10):
            while any(each() is not None for each in held):
                await asyncio.sleep(0)
    finally:
        gc.enable()


@pytest.mark.parametrize("num_bytes", [10, MAX_WAITING_BYTES + 1])  # the last byte pauses reading
async def test_a_client_that_leaves_after_its_body_is_noticed(serve: Serve, num_bytes: int) -> None:
    left = asyncio.Event()

    async def waits(call: HttpCall) -> None:
        while not call.receive.__self__._is_body_received:  # type: ignore[attr-defined]
            await asyncio.sleep(0)  # all of it waits here before the application takes any
        await call.read_json_bytes(2_000_000)
        while (await call.receive())["type"] != "http.disconnect":
            pass
        left.set()

    builder = RouteBuilder(Telemetry(OFF, Metrics(())))
    server = serve(builder.router([builder.route("POST", "/x", "other", waits)]))
    client = await server.connect()
    head = f"POST /x HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {num_bytes}"
    await client.send(f"{head}\r\n\r\n".encode() + b"x" * num_bytes)
    client.writer.close()
    async with asyncio.timeout(TIMEOUT_S):
        await left.wait()
