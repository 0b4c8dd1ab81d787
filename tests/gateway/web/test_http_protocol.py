"""Raw bytes on a real connection, which no ASGI test can send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from gateway.web.http_protocol import MAX_HEAD_BYTES, HttpProtocol

POST = b"POST /echo HTTP/1.1\r\nhost: x\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the request's body."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    length = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server of `echo`."""
    config = uvicorn.Config(echo, lifespan="off", http=HttpProtocol, ws="none", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    listener = await asyncio.get_running_loop().create_server(
        lambda: HttpProtocol(config, server.server_state, {}), "127.0.0.1", 0
    )
    yield listener.sockets[0].getsockname()[1]
    listener.close()
    for connection in list(server.server_state.connections):
        connection.transport.abort()


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Everything received until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


def error_of(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    return int(head.split(b" ")[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + b"x" * 200,
        POST + b"content-length: -5\r\n\r\n",
        POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        POST + b"a header: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_malformed_http_is_refused_in_openais_shape(port: int, data: bytes) -> None:
    status, error = error_of(await exchange(port, data))
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_http")


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES, 20 * MAX_HEAD_BYTES])
@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
async def test_headers_are_bounded(port: int, size: int, end: bytes) -> None:
    pieces = [b"x" * 16384] * (size // 16384)
    status, error = error_of(await exchange(port, POST + b"x-long: ", *pieces, end))
    assert (status, error["code"]) == (431, "headers_too_large")


async def test_bodies_are_not_counted_as_headers(port: int) -> None:
    body = b"x" * (3 * MAX_HEAD_BYTES)
    pieces = [body[i : i + 10_000] for i in range(0, len(body), 10_000)]
    length = b"content-length: %d\r\n" % len(body)
    first, last = POST + length + b"\r\n", POST + length + b"connection: close\r\n\r\n"
    answer = await exchange(port, first, *pieces, last, *pieces)
    assert answer.count(b"200 OK") == 2
    assert answer.endswith(body)


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE"])
async def test_an_offered_upgrade_is_ignored(port: int, name: bytes) -> None:
    body = b"about \r\nupgrade: h2c"
    offer = b"connection: upgrade, http2-settings, close\r\n" + name + b": h2c\r\nhttp2-settings: AAA\r\n"
    answer = await exchange(port, POST + offer + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.endswith(body)
