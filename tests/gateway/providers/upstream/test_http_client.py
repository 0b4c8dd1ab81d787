"""The HTTP client against a real socket: pooling, framing, limits, cancellation."""

from __future__ import annotations

import asyncio

import pytest

from gateway.providers.upstream import http_connection
from gateway.providers.upstream.http_client import HttpClient, encode_headers
from gateway.providers.upstream.transport import ConnectionBroken
from tests.gateway.providers.upstream.scripted_server import (
    STREAM_HEAD,
    Seen,
    always,
    chunk,
    response,
    serving,
)
from tests.gateway.providers.upstream.transport_calls import MIB, ask


def client_for(base_url: str) -> HttpClient:
    return HttpClient(base_url, connect_timeout_s=5.0, headers={"authorization": "Bearer k"})


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


async def test_endless_headers_are_refused() -> None:
    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while not writer.is_closing():
            writer.write(b"x-filler: " + b"a" * 1000 + b"\r\n")
            await writer.drain()

    async with serving(script) as server:
        with pytest.raises(ConnectionBroken, match="headers"):
            await ask(client_for(server.base_url))


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
