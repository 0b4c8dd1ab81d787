"""What both transports do alike, against a real socket: pooling, framing, limits, cancellation."""

from __future__ import annotations

import asyncio
import gzip
import socket
import zlib

import pytest

from gateway.providers.upstream.transport import (
    ConnectFailed,
    ConnectionBroken,
    ReplyTimedOut,
)
from tests.gateway.providers.upstream.conftest import Open
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    Seen,
    always,
    chunk,
    response,
    serving,
)
from tests.gateway.providers.upstream.transport_calls import MIB, ask


async def test_concurrent_requests_use_their_own_connections(open_client: Open) -> None:
    async with serving(always(response(b"ok"))) as server:
        client = open_client(server.base_url)
        assert await asyncio.gather(*(ask(client) for _ in range(20))) == [b"ok"] * 20
        opened = server.connections
        assert await asyncio.gather(*(ask(client) for _ in range(5))) == [b"ok"] * 5
        assert server.connections == opened <= 20


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
async def test_framings(pieces: list[bytes], open_client: Open) -> None:
    async with serving(always(*pieces)) as server:
        client = open_client(server.base_url)
        assert await ask(client) == b"hello"
        assert await ask(client) == b"hello"
        assert server.connections == 1


async def test_body_until_close(open_client: Open) -> None:
    async with serving(always(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo", close=True)) as server:
        client = open_client(server.base_url)
        assert await ask(client) == b"hello"
        assert await ask(client) == b"hello"
        assert server.connections == 2


async def test_connection_close_is_not_reused(open_client: Open) -> None:
    async with serving(always(response(b"ok", connection="close"))) as server:
        client = open_client(server.base_url)
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]
        assert server.connections == 2


async def test_idle_connection_closed_by_the_server_is_replaced(open_client: Open) -> None:
    async def once_per_connection(writer: asyncio.StreamWriter, seen: Seen) -> None:
        if sum(other.connection == seen.connection for other in server.seen) == 1:
            writer.write(response(b"ok"))
        else:
            writer.close()  # as a server does whose keep-alive limit ran out just now

    async with serving(once_per_connection) as server:
        client = open_client(server.base_url)
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]
        assert server.connections == 2


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
async def test_broken_answers(pieces: list[bytes], open_client: Open) -> None:
    async with serving(always(*pieces, close=True)) as server:
        with pytest.raises(ConnectionBroken):
            await ask(open_client(server.base_url))
        assert server.connections == 1  # a fresh connection that breaks is not tried again


async def test_too_long_body_and_bomb_are_refused(open_client: Open) -> None:
    bomb = gzip.compress(bytes(8 * MIB))
    answers = {"longer": response(bytes(2 * MIB)), "compressed": response(bomb, content_encoding="gzip")}
    for reason, answer in answers.items():
        async with serving(always(answer)) as server:
            with pytest.raises(ConnectionBroken, match=reason):
                await ask(open_client(server.base_url))


async def test_surplus_bytes_end_the_connection_not_the_answer(open_client: Open) -> None:
    async with serving(always(response(b"ok") + response(b"uninvited"))) as server:
        client = open_client(server.base_url)
        assert [await ask(client), await ask(client)] == [b"ok", b"ok"]
        assert server.connections == 2


async def test_connect_refused_and_unknown_host(open_client: Open) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectFailed):
            await ask(open_client(f"http://127.0.0.1:{unused.getsockname()[1]}"))
    with pytest.raises(ConnectFailed):
        await ask(open_client("http://nowhere.invalid"))


async def test_tls_to_a_server_without_tls(open_client: Open) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response(b"ok"))
        writer.close()

    listener = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with listener:
        with pytest.raises(ConnectFailed, match="TLS failed"):
            await ask(open_client(f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"))


async def test_silence_before_and_after_headers(open_client: Open) -> None:
    async def silent(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await asyncio.Event().wait()

    async def half(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(STREAM_HEAD + chunk(b"a"))
        await asyncio.Event().wait()

    async with serving(silent) as server:
        with pytest.raises(ReplyTimedOut):
            await ask(open_client(server.base_url), 0.05)
    async with serving(half) as server:
        reply = await open_client(server.base_url).post("/x", {}, b"{}", 5.0)
        assert await reply.read(5.0) == b"a"
        with pytest.raises(ReplyTimedOut):
            await reply.read(0.05)
        reply.close()


async def test_slow_but_steady_is_within_the_idle_limit(open_client: Open) -> None:
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(STREAM_HEAD)
        for _ in range(6):
            await asyncio.sleep(0.05)
            writer.write(chunk(b"a"))
        writer.write(END)

    async with serving(script) as server:
        assert await ask(open_client(server.base_url), 0.2) == b"a" * 6


async def test_cancelling_closes_the_upstream_connection(open_client: Open) -> None:
    arrived = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter, seen: Seen) -> None:
        arrived.set()
        assert await seen.reader.read() == b""
        writer.close()

    async with serving(silent) as server:
        task = asyncio.create_task(ask(open_client(server.base_url)))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.wait_for(server.closed.get(), 5) == 1


@pytest.mark.parametrize("host", [f"{'a' * 64}.test", "a..test"])
async def test_names_that_cannot_be_are_connect_errors(host: str, open_client: Open) -> None:
    with pytest.raises(ConnectFailed):
        await ask(open_client(f"http://{host}/v1"))
