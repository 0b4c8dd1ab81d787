"""Both transports against a server that is broken or hostile: framing, headers, compression."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import zlib
from collections.abc import Callable

import pytest

from gateway.providers.upstream.open_transport import open_transport
from gateway.providers.upstream.transport import (
    ConnectionBroken,
    NetworkOptions,
    ReplyTimedOut,
    TransportError,
)
from tests.gateway.providers.upstream.conftest import Open
from tests.gateway.providers.upstream.heartbeat import heartbeat
from tests.gateway.providers.upstream.scripted_server import (
    END,
    STREAM_HEAD,
    Seen,
    always,
    chunk,
    response,
    serving,
)
from tests.gateway.providers.upstream.transport_calls import MIB, ask, post

# Framing


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 102 Processing\r\n\r\n" * 20 + response(b"ok")],
        [b"HTTP/1.1 103 Early Hints\r\nretry-after: 9\r\n\r\n" * 20, response(b"ok")],
        [STREAM_HEAD, b"2;name=value\r\nok\r\n", END],
        [STREAM_HEAD, chunk(b"ok"), b"0\r\nx-checksum: 1\r\n\r\n"],
    ],
    ids=["many 102", "many 103", "chunk extension", "trailer"],
)
async def test_unusual_but_correct_answers(pieces: list[bytes], open_client: Open) -> None:
    async with serving(always(*pieces)) as server:
        client = open_client(server.base_url)
        for _ in range(2):
            reply = await post(client)
            assert await reply.read_all(5.0, MIB) == b"ok"
            assert "retry-after" not in reply.headers
        assert server.connections == 1


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"content-length: -2\r\n\r\nok",
        HEAD + b"content-length: 2x\r\n\r\nok",
        HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\nok",
        HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\nok",
        HEAD + b"content-length: 9\r\n\r\nok",
        STREAM_HEAD + b"-2\r\nok\r\n",
        STREAM_HEAD + b"f" * 5000 + b"\r\nok",
        STREAM_HEAD + b"5\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 20000 OK\r\n\r\n",
        HEAD + b"bad header\x00: x\r\n\r\n",
    ],
    ids=[
        "negative length", "length of letters", "huge length", "two lengths", "short body", "negative chunk",
        "huge chunk", "short chunk", "absurd status", "bad header",
    ],
)  # fmt: skip
async def test_broken_framing_is_an_error(head: bytes, open_client: Open) -> None:
    async with serving(always(head, close=True)) as server:
        with pytest.raises(TransportError):
            await ask(open_client(server.base_url))
        await asyncio.wait_for(server.closed.get(), 5)


async def test_101_is_an_error_without_a_traceback(
    open_client: Open, caplog: pytest.LogCaptureFixture
) -> None:
    switched = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    async with serving(always(switched + bytes(100))) as server:
        client = open_client(server.base_url)
        for _ in range(2):
            with pytest.raises(ConnectionBroken):
                await post(client)
        assert server.connections == 2
    assert [record for record in caplog.records if record.exc_info] == []


def endless(start: bytes, more: bytes) -> Callable[[asyncio.StreamWriter, Seen], object]:
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(start)
        while not writer.is_closing():
            writer.write(more)
            await writer.drain()

    return script


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (HEAD, b"x-filler: " + b"a" * 1000 + b"\r\n"),
        (HEAD + b"x-filler: ", b"a" * 1000),
        (b"HTTP/1.1 200 ", b"a" * 1000),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 20),
        (STREAM_HEAD + chunk(b"ok") + b"0\r\n", b"x-filler: " + b"a" * 1000 + b"\r\n"),
        (STREAM_HEAD + chunk(b"ok") + b"0\r\nx: ", b"a" * 1000),
        (STREAM_HEAD + chunk(b"ok") + b"2;x=", b"a" * 1000),
        (STREAM_HEAD + chunk(b"ok"), b"0" * 1000),
    ],
    ids=[
        "headers", "header line", "reason", "103", "trailers", "trailer line", "chunk extension",
        "chunk size",
    ],
)  # fmt: skip
async def test_endless_head_or_framing_is_cut_off(start: bytes, more: bytes, open_client: Open) -> None:
    async with serving(endless(start, more)) as server:  # type: ignore[arg-type]
        async with heartbeat() as beat:
            with pytest.raises(TransportError):
                await ask(open_client(server.base_url), 1.0)
        await asyncio.wait_for(server.closed.get(), 5)
    assert beat.longest_turn_s < 0.5


async def test_trailers_do_not_replace_headers(open_client: Open) -> None:
    head = STREAM_HEAD.replace(b"\r\n\r\n", b"\r\nretry-after: 7\r\n\r\n")
    trailers = b"0\r\nretry-after: 999999\r\ncontent-type: text/html\r\nx-new: 1\r\n\r\n"
    async with serving(always(head, chunk(b"ok"), trailers)) as server:
        reply = await post(open_client(server.base_url))
        assert await reply.read_all(5.0, MIB) == b"ok"
        assert reply.headers["retry-after"] == "7"
        assert reply.headers["content-type"] == "text/event-stream"
        assert "x-new" not in reply.headers


async def test_repeated_headers_are_joined(open_client: Open) -> None:
    async with serving(always(HEAD + b"x-a: 1\r\nX-A: 2\r\ncontent-length: 2\r\n\r\nok")) as server:
        assert (await post(open_client(server.base_url))).headers["x-a"] == "1, 2"


@pytest.mark.parametrize("status", [204, 304])
async def test_body_of_a_bodiless_status_is_not_the_next_answer(status: int, open_client: Open) -> None:
    stowaway = response(b"uninvited")
    async with serving(always(b"HTTP/1.1 %d X\r\n\r\n" % status + stowaway)) as server:
        client = open_client(server.base_url)
        for _ in range(3):
            reply = await post(client)
            assert (reply.status, await reply.read_all(5.0, MIB)) == (status, b"")
        assert server.connections == 3


def test_late_surplus_is_not_the_next_answer(transport: str) -> None:
    """The server runs in a thread: its surplus is in the socket, unread, when the next request is made."""
    surplus_wanted, surplus_sent = threading.Event(), threading.Event()
    connections = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            connection.recv(65536)
            connection.sendall(response(b"ok"))
            if len(connections) == 1:
                assert surplus_wanted.wait(10)
                connection.sendall(response(b"uninvited"))
                surplus_sent.set()

    async def two_requests(port: int) -> list[bytes]:
        url = f"http://127.0.0.1:{port}/v1"
        client = open_transport(url, NetworkOptions(), connect_timeout_s=5.0, headers={})
        first = await ask(client)
        surplus_wanted.set()
        assert surplus_sent.wait(10)  # blocks the event loop
        answers = [first, await ask(client)]
        await client.close()
        return answers

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            answers = asyncio.run(two_requests(listener.getsockname()[1]))
        finally:
            surplus_wanted.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in connections:
                connection.close()
    assert answers == [b"ok", b"ok"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(status: int, open_client: Open) -> None:
    async with serving(always(response(b"stolen"))) as other:
        location = f"http://127.0.0.1:{other.port}/v1/x"
        async with serving(always(response(b"there", status, location=location))) as server:
            reply = await post(open_client(server.base_url))
            assert (reply.status, await reply.read_all(5.0, MIB)) == (status, b"there")
        assert other.seen == []


# Compression


@pytest.mark.parametrize("size", [0, 1, 65536, 300_000])
async def test_compressed_bodies_are_read_to_their_end(size: int, open_client: Open) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    half = size // 2
    members = gzip.compress(body[:half]) + gzip.compress(body[half:])
    for packed, encoding in (
        (gzip.compress(body), "gzip"),
        (gzip.compress(body), " X-GZIP "),
        (zlib.compress(body), "deflate"),
        (members, "gzip"),
    ):
        async with serving(always(response(packed, content_encoding=encoding))) as server:
            assert await ask(open_client(server.base_url)) == body


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(b"hello")[:-3],
        gzip.compress(b"hello") + b"garbage",
        gzip.compress(b"hello") + gzip.compress(b"hello")[:9],
        b"hello",
    ],
    ids=["cut", "surplus", "second member cut", "not compressed"],
)
async def test_broken_compression_is_an_error(body: bytes, open_client: Open) -> None:
    async with serving(always(response(body, content_encoding="gzip"))) as server:
        with pytest.raises(ConnectionBroken, match="compressed"):
            await ask(open_client(server.base_url))


@pytest.mark.parametrize(
    "encoding", ["br", "zstd", "compress", "gzip, gzip", "sk-canary", "gzip\r\ncontent-encoding: br"]
)
async def test_other_encodings_are_refused_and_the_connection_closed(
    encoding: str, open_client: Open
) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ntransfer-encoding: chunked\r\n\r\n"
    async with serving(always(head.encode() + chunk(b"endless"))) as server:
        with pytest.raises(ConnectionBroken, match="encoding") as refused:
            await ask(open_client(server.base_url))
        await asyncio.wait_for(server.closed.get(), 5)
    assert "canary" not in str(refused.value)


BOMBS = {
    "blank lines": b"\n",
    "comments": b":\n\n",
    "data lines": b"data:\n",
    "events": b'data: {"choices":[]}\n\n',
    "one line": b"x",
}


def bomb(unit: bytes, size_bytes: int = 20_000) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    block, packed = unit * (MIB // len(unit)), b""
    while len(packed) < size_bytes:
        packed += packer.compress(block)
    return packed + packer.flush()


@pytest.mark.parametrize("unit", BOMBS.values(), ids=BOMBS.keys())
async def test_compression_bomb_is_refused_and_the_loop_goes_on(unit: bytes, open_client: Open) -> None:
    packed = bomb(unit)
    async with serving(always(response(packed, content_encoding="gzip"))) as server:
        reply, size = await post(open_client(server.base_url)), 0
        async with heartbeat() as beat:
            with pytest.raises(ConnectionBroken, match="compress"):
                while piece := await reply.read(5.0):
                    size += len(piece)
        reply.close()
    assert beat.longest_turn_s < 0.5
    assert size < 20 * MIB


async def test_bomb_of_many_members_is_refused(open_client: Open) -> None:
    packed = gzip.compress(bytes(100_000)) * 500
    async with serving(always(response(packed, content_encoding="gzip"))) as server:
        reply = await post(open_client(server.base_url))
        with pytest.raises(ConnectionBroken, match="compress"):
            while await reply.read(5.0):
                pass
        reply.close()


@pytest.mark.parametrize("member", [gzip.compress(b""), None], ids=["members", "blocks"])
async def test_compressed_nothing_meets_the_idle_limit(member: bytes | None, open_client: Open) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n"
    start = head if member else head + gzip.compress(b"")[:10]
    nothing = member or b"\x00\x00\x00\xff\xff"  # an empty stored block
    async with serving(endless(start, nothing * 2000)) as server:  # type: ignore[arg-type]
        reply = await post(open_client(server.base_url))
        async with heartbeat() as beat:
            with pytest.raises(ReplyTimedOut):
                await asyncio.wait_for(reply.read(0.3), 10)
        reply.close()
    assert beat.longest_turn_s < 0.5


# Fairness


@pytest.mark.parametrize(("data", "count"), [(b"x", 20_000), (b"x" * 100_000, 40)], ids=["tiny", "large"])
async def test_reading_a_flood_of_chunks_lets_other_tasks_run(
    data: bytes, count: int, open_client: Open
) -> None:
    flood = chunk(data) * count
    async with serving(always(STREAM_HEAD + flood + END)) as server:
        reply = await post(open_client(server.base_url))
        longest = 0
        async with heartbeat() as beat:
            while piece := await reply.read(5.0):
                longest = max(longest, len(piece))
    assert longest <= 64 * 1024
    assert beat.longest_turn_s < 0.5
