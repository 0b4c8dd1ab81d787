from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from gateway.answer import Delta
from gateway.providers.fake import FakeProvider, TextCall
from gateway.web import http_protocol
from gateway.web.http_call import HttpCall
from gateway.web.http_protocol import MAX_PIPELINED
from tests.gateway.conftest import MakeApp
from tests.gateway.web.conftest import Serve
from tests.gateway.web.raw import RawServer, by_byte, chunked, request
from tests.gateway.web.test_asgi_endpoint import app_with

JSON = "content-type: application/json"
PATH = "/v1/chat/completions"
MODELS = request("GET", "/v1/models")
LAST = request("GET", "/v1/models", "connection: close")
SHORT_S = 0.5


def chat(*lines: str, **fields: object) -> bytes:
    """A chat request."""
    body = {"model": "ours", "messages": [{"role": "user", "content": "hi"}], **fields}
    return request("POST", PATH, JSON, *lines, body=json.dumps(body).encode())


class Paused:
    """A script that says "Hello", and " again" once it may go on."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def __call__(self, call: TextCall) -> AsyncIterator[Delta]:
        yield Delta(0, "Hello")
        self.has_begun.set()
        await self.may_go_on.wait()
        yield Delta(0, " again", finish_reason="stop")


@pytest.fixture
async def paused() -> Paused:
    return Paused()


@pytest.fixture
def fake(paused: Paused) -> FakeProvider:
    return FakeProvider(paused)


@pytest.fixture
async def server(serve: Serve, make_app: MakeApp) -> RawServer:
    return serve(make_app())


@pytest.fixture
async def hurried(serve: Serve, make_app: MakeApp) -> RawServer:
    """A server with little patience."""
    return serve(make_app(), head_timeout_s=SHORT_S, body_timeout_s=SHORT_S)


async def ended(fake: FakeProvider) -> None:
    """Wait until the provider's script has ended."""
    async with asyncio.timeout(10):
        while fake.num_ended == 0:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("data", [b"GET /v1", MODELS[:-2], MODELS + MODELS[:-2]])
async def test_a_head_must_be_whole_in_time(hurried: RawServer, data: bytes) -> None:
    replies = await hurried.ask(data)
    assert replies[-1].error == (408, "request_timeout")
    assert replies[-1].headers["connection"] == "close"


async def test_a_head_may_not_trickle_in(hurried: RawServer) -> None:
    """Every byte in time, but not the head."""
    client = await hurried.connect()

    async def trickle() -> None:
        while not client.reader.at_eof():
            client.writer.write(b"x")
            await asyncio.sleep(SHORT_S / 5)

    client.writer.write(b"GET /")
    trickling = asyncio.create_task(trickle())
    assert [reply.error for reply in await client.replies()] == [(408, "request_timeout")]
    trickling.cancel()


async def test_a_silent_connection_is_closed(hurried: RawServer) -> None:
    assert await hurried.ask(b"") == []


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_must_be_whole_in_time(hurried: RawServer, fake: FakeProvider, is_chunked: bool) -> None:
    data = request("POST", PATH, JSON, "transfer-encoding: chunked") + chunked(b"{}")[:-2]
    replies = await hurried.ask(data if is_chunked else chat()[:-2])
    assert [reply.error for reply in replies] == [(408, "request_timeout")]
    assert fake.asked == []


async def test_an_answer_may_take_longer_than_a_request(hurried: RawServer, paused: Paused) -> None:
    """Also with a second request behind it, whose body is not read meanwhile."""
    client = await hurried.connect()
    await client.send(chat(), chat("connection: close", user="x" * 100_000))
    await paused.has_begun.wait()
    await asyncio.sleep(2 * SHORT_S)
    paused.may_go_on.set()
    assert [reply.status for reply in await client.replies()] == [200, 200]


async def test_refusals_wait_for_the_answers_before_them(server: RawServer, paused: Paused) -> None:
    client = await server.connect()
    await client.send(chat(stream=True) + b"nonsense\r\n\r\n")
    await paused.has_begun.wait()
    paused.may_go_on.set()
    first, refusal = await client.replies()
    assert first.is_complete and first.body.endswith(b"data: [DONE]\n\n")
    assert refusal.error == (400, "invalid_http")


async def test_refusals_are_counted(server: RawServer) -> None:
    await server.ask(b"nonsense\r\n\r\n")
    (reply,) = await server.ask(request("GET", "/metrics", "connection: close"))
    counted = 'penstock_requests_total{endpoint="other",model="-",status="4xx"} 1.0'
    assert counted in reply.body.decode()


async def test_a_half_closed_client_gets_its_whole_answer(server: RawServer, paused: Paused) -> None:
    paused.may_go_on.set()
    (reply,) = await server.ask(chat(), end=True)
    assert reply.json["choices"][0]["message"]["content"] == "Hello again"
    (reply,) = await server.ask(chat(stream=True), by_byte, end=True)
    assert reply.body.endswith(b"data: [DONE]\n\n") and reply.is_complete
    replies = await server.ask(MODELS + chat() + MODELS, end=True)
    assert [reply.status for reply in replies] == [200] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_half_closed_client_may_wait_long(server: RawServer, paused: Paused, stream: bool) -> None:
    """The client is probed meanwhile with what clients ignore."""
    client = await server.connect()
    await client.send(chat(stream=stream))
    client.end()
    await paused.has_begun.wait()
    seen = await client.read_until(b"\n:\n\n" if stream else b"HTTP/1.1 100 Continue\r\n\r\n")
    paused.may_go_on.set()
    rest = await client.reader.read()
    if stream:
        assert seen.startswith(b"HTTP/1.1 200 OK") and rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        assert b"HTTP/1.1 200 OK" in rest and rest.endswith(b"}")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_client_that_leaves_cancels_its_request(
    server: RawServer, fake: FakeProvider, paused: Paused, stream: bool, is_reset: bool
) -> None:
    client = await server.connect()
    await client.send(chat(stream=stream))
    await paused.has_begun.wait()
    if stream:
        await client.read_until(b"Hello")
    if is_reset:
        linger = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await client.close()
    await ended(fake)


async def test_a_proxy_with_http_1_0_that_leaves_cancels_its_request(
    server: RawServer, fake: FakeProvider, paused: Paused
) -> None:
    client = await server.connect()
    await client.send(chat().replace(b"HTTP/1.1", b"HTTP/1.0"))
    await paused.has_begun.wait()
    await client.close()
    await ended(fake)


@pytest.mark.parametrize("data", [MODELS[:-2], chat()[:-2]], ids=["head", "body"])
async def test_a_request_that_ends_too_early(server: RawServer, fake: FakeProvider, data: bytes) -> None:
    replies = await server.ask(data, end=True)
    assert [reply.status for reply in replies] in ([400], [])
    assert fake.asked == []
    await server.all_closed()


async def test_a_refused_client_may_go_on_sending(server: RawServer) -> None:
    """The client still gets its answer: no reset while it sends."""
    client = await server.connect()
    await client.send(b"nonsense\r\n\r\n", *[b"x" * 100_000] * 20)
    assert [reply.error for reply in await client.replies()] == [(400, "invalid_http")]


async def test_reading_pauses_while_a_body_is_not_taken(server: RawServer) -> None:
    """A body for a path that takes none is not kept in memory."""
    client = await server.connect()
    await client.send(request("POST", "/none", "content-length: 100000000"), *[b"x" * 100_000] * 5)
    assert [reply.status for reply in await client.replies()] == [404]


async def test_errors_of_the_application_close_the_connection(
    serve: Serve, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    """Its endpoints answer every error; this is for what happens outside of them."""
    app = make_app()

    async def broken(*_: object) -> None:
        raise RuntimeError("se" + "cret")  # the traceback shows this line

    app.default = broken
    with caplog.at_level(logging.ERROR):
        assert await serve(app).ask(request("GET", "/none")) == []
    assert "RuntimeError" in caplog.text and "secret" not in caplog.text


async def test_half_open_connections_do_not_stay(hurried: RawServer) -> None:
    clients = []
    for _ in range(50):  # each writes at once: what has said nothing at the limit is closed without an answer
        clients.append(await hurried.connect())
        clients[-1].writer.write(b"GET / HTTP/1.1\r\n")
    for client in clients:
        assert [reply.status for reply in await client.replies()] == [408]
        await client.close()
    await hurried.all_closed()


async def test_a_client_may_read_its_last_answer_slowly(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written stays until the client has read it, also once the connection is to be closed."""
    monkeypatch.setattr(http_protocol, "LINGER_S", 0.1)
    size = 8_000_000

    async def large(call: HttpCall) -> None:
        await call.respond(b"x" * size)

    server = serve(app_with(large))
    client = await server.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(request("GET", "/x", "connection: close"))
    await asyncio.sleep(1)
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    (reply,) = await client.replies()
    assert reply.is_complete and len(reply.body) == size


async def test_a_client_that_never_reads_its_last_answer_is_cut_off(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "SEND_TIMEOUT_S", 0.5)

    async def large(call: HttpCall) -> None:
        await call.respond(b"x" * 30_000_000)

    server = serve(app_with(large))
    client = await server.connect()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(request("GET", "/x", "connection: close"))
    await server.all_closed()


async def test_pipelined_requests_are_bounded(server: RawServer) -> None:
    replies = await server.ask(MODELS * 10_000)
    assert len(replies) == MAX_PIPELINED and {reply.status for reply in replies} == {200}
    assert replies[-1].headers["connection"] == "close"


async def test_a_body_of_tiny_chunks(server: RawServer, paused: Paused) -> None:
    """Quickly, and up to the limit."""
    paused.may_go_on.set()
    body = json.dumps({"model": "ours", "messages": [{"role": "user", "content": "x" * 300_000}]}).encode()
    head = request("POST", PATH, JSON, "transfer-encoding: chunked", "connection: close")
    started_s = asyncio.get_running_loop().time()
    assert [reply.status for reply in await server.ask(head + chunked(body, 1))] == [200]
    assert asyncio.get_running_loop().time() - started_s < 10  # a bound for what was quadratic
