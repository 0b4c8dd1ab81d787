"""The HTTP client against a real socket: pooling, framing, limits, cancellation."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib

import pytest

from gateway.providers.upstream import http_connection
from gateway.providers.upstream.http_client import HttpClient, encode_headers
from gateway.providers.upstream.transport import ConnectFailed, ConnectionBroken, ReplyTimedOut
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    Seen,
    always,
    chunk,
    response,
    serving,
)

MIB = 1 << 20


def client_for(base_url: str) -> HttpClient:
    return HttpClient(base_url, connect_timeout_s=5.0, headers={"authorization": "Bearer k"})


async def ask(client: HttpClient, timeout_s: float = 5.0) -> bytes:
    reply = await client.post("/x", {}, b"{}", timeout_s)
    return await reply.read_all(timeout_s, MIB)


async def test_request_on_the_wire_and_keep_alive() -> None:
    async with serving(always(response(b"ok"))) as server:
        client = client_for(server.base_url)
        for _ in range(3):
            assert await ask(client) == b"ok"
        assert server.connections == 1
        assert server.seen[0].head == "POST /v1/x HTTP/1.1"
        assert server.seen[0].headers == {
            "host": f"127.0.0.1:{server.port}",
            "accept-encoding": "identity",
            "authorization": "bearer k",
            "content-length": "2",
        }
        await client.close()


async def test_concurrent_requests_use_their_own_connections() -> None:
    async with serving(always(response(b"ok"))) as server:
        client = client_for(server.base_url)
        assert await asyncio.gather(*(ask(client) for _ in range(20))) == [b"ok"] * 20
        opened = server.connections
        assert await asyncio.gather(*(ask(client) for _ in range(5))) == [b"ok"] * 5
        assert server.connections == opened <= 20
        await client.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [STREAM_HEAD, chunk(b"hel"), chunk(b"lo"), END],
        [bytes([b]) for b in STREAM_HEAD + chunk(b"hello") + END],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + response(b"hello")],
        [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", response(b"hello")],
        [response(gzip.compress(b"hello"), content_encoding="gzip")],
        [response(zlib.compress(b"hello"), content_encoding="deflate")],
    ],
    ids=["chunked", "byte by byte", "100", "103", "gzip", "deflate"],
)
async def test_framings(pieces: list[bytes]) -> None:
    async with serving(always(*pieces)) as server:
        client = client_for(server.base_url)
        assert await ask(client) == b"hello"
        assert await ask(client) == b"hello"
        assert server.connections == 1
        await client.close()


async def test_body_until_close() -> None:
    async with serving(always(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", close=True)) as server:
        client = client_for(server.base_url)
        assert await ask(client) == b"hello"
        assert await ask(client) == b"hello"
        assert server.connections == 2


async def test_connection_close_is_not_reused() -> None:
    async with serving(always(response(b"ok", connection="close"))) as server:
        client = client_for(server.base_url)
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]
        assert server.connections == 2


async def test_idle_connection_closed_by_the_server_is_replaced() -> None:
    async def once_per_connection(writer: asyncio.StreamWriter, seen: Seen) -> None:
        if sum(other.connection == seen.connection for other in server.seen) == 1:
            writer.write(response(b"ok"))
        else:
            writer.close()  # as a server does whose keep-alive limit ran out just now

    async with serving(once_per_connection) as server:
        client = client_for(server.base_url)
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]
        assert server.connections == 2
        await client.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [b""],
        [b"HTTP/1.1 200 OK\r\ncontent-le"],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"],
        [STREAM_HEAD + chunk(b"a")],
        [STREAM_HEAD + b"zz\r\n"],
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [b"\x16\x03\x01\x00\x00"],
        [response(b"not gzip", content_encoding="gzip")],
        [response(b"x", content_encoding="br")],
    ],
    ids=["nothing", "headers", "length", "chunks", "bad chunk", "ssh", "tls", "bad gzip", "brotli"],
)
async def test_broken_answers(pieces: list[bytes]) -> None:
    async with serving(always(*pieces, close=True)) as server:
        with pytest.raises(ConnectionBroken):
            await ask(client_for(server.base_url))
        assert server.connections == 1  # a fresh connection that breaks is not tried again


async def test_endless_headers_are_refused() -> None:
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while not writer.is_closing():
            writer.write(b"x-filler: " + b"a" * 1000 + b"\r\n")
            await writer.drain()

    async with serving(script) as server:
        with pytest.raises(ConnectionBroken, match="headers"):
            await ask(client_for(server.base_url))


async def test_too_long_body_and_bomb_are_refused() -> None:
    bomb = gzip.compress(bytes(8 * MIB))
    answers = {"longer": response(bytes(2 * MIB)), "compressed": response(bomb, content_encoding="gzip")}
    for reason, answer in answers.items():
        async with serving(always(answer)) as server:
            with pytest.raises(ConnectionBroken, match=reason):
                await ask(client_for(server.base_url))


async def test_surplus_bytes_end_the_connection_not_the_answer() -> None:
    async with serving(always(response(b"ok") + response(b"uninvited"))) as server:
        client = client_for(server.base_url)
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]
        assert server.connections == 2


async def test_connect_refused_and_unknown_host() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed):
            await ask(client_for(f"http://127.0.0.1:{unused.getsockname()[1]}"))
    with pytest.raises(ConnectFailed):
        await ask(client_for("http://nowhere.invalid"))


async def test_tls_to_a_server_without_tls() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"ok"))
        writer.close()

    listener = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with listener:
        with pytest.raises(ConnectFailed, match="TLS failed"):
            await ask(client_for(f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"))


async def test_silence_before_and_after_headers() -> None:
    async def silent(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await asyncio.Event().wait()

    async def half(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(STREAM_HEAD + chunk(b"a"))
        await asyncio.Event().wait()

    async with serving(silent) as server:
        with pytest.raises(ReplyTimedOut):
            await ask(client_for(server.base_url), 0.05)
    async with serving(half) as server:
        reply = await client_for(server.base_url).post("/x", {}, b"{}", 5.0)
        assert await reply.read(5.0) == b"a"
        with pytest.raises(ReplyTimedOut):
            await reply.read(0.05)
        reply.close()


async def test_slow_but_steady_is_within_the_idle_limit() -> None:
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(STREAM_HEAD)
        for _ in range(6):
            await asyncio.sleep(0.05)
            writer.write(chunk(b"a"))
        writer.write(END)

    async with serving(script) as server:
        assert await ask(client_for(server.base_url), 0.2) == b"a" * 6


async def test_cancelling_closes_the_upstream_connection() -> None:
    arrived = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter, seen: Seen) -> None:
        arrived.set()
        assert await seen.reader.read() == b""
        writer.close()

    async with serving(silent) as server:
        task = asyncio.create_task(ask(client_for(server.base_url)))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(server.closed.get(), 5) == 1


async def test_unread_body_stops_the_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HIGH_WATER_BYTES", 64 * 1024)
    sent = 0

    async def flood(writer: asyncio.StreamWriter, seen: Seen) -> None:
        nonlocal sent
        writer.write(STREAM_HEAD)
        while not writer.is_closing():
            writer.write(chunk(bytes(32 * 1024)))
            await writer.drain()
            sent += 32 * 1024

    async with serving(flood) as server:
        reply = await client_for(server.base_url).post("/x", {}, b"{}", 5.0)
        last = -1
        while last != sent:  # until the socket buffers are full and nothing moves any more
            last = sent
            await asyncio.sleep(0.1)
        assert sent < 32 * MIB
        got = 0
        while got <= last:  # reading lets it go on
            got += len(await reply.read(5.0))
        reply.close()


def test_header_values_stay_on_their_line() -> None:
    assert encode_headers({"a": "1", "b": "x y"}) == b"a: 1\r\nb: x y\r\n"
    for value in ("x\r\nevil: 1", "\n", "é", "\x00"):
        with pytest.raises(ValueError, match="'a'"):
            encode_headers({"a": value})
