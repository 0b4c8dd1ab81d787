"""Raw bytes on a real connection, in any segmentation, and the responses in what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.web.http_server import HttpServer

TIMEOUT_S = 20
Split = Callable[[bytes], Sequence[bytes]]


def whole(data: bytes) -> Sequence[bytes]:
    return [data]


def by_line(data: bytes) -> Sequence[bytes]:
    return data.splitlines(keepends=True)


def by_byte(data: bytes) -> Sequence[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


SPLITS = (whole, by_line, by_byte)


@dataclass
class Reply:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_complete: bool = True

    @property
    def json(self) -> Any:  # noqa: ANN401
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and code of an error in OpenAI's shape."""
        assert self.headers["content-type"] == "application/json"
        assert set(self.json["error"]) == {"message", "type", "param", "code"}
        return self.status, self.json["error"]["code"]


def replies_in(data: bytes) -> list[Reply]:
    """The responses, interim ones included; the last may be incomplete."""
    replies = []
    while data:
        head, end, data = data.partition(b"\r\n\r\n")
        assert end, head
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        status = int(first.split(" ")[1])
        body, is_complete = b"", True
        if "content-length" in headers:
            length = int(headers["content-length"])
            body, data = data[:length], data[length:]
            is_complete = len(body) == length
        elif headers.get("transfer-encoding") == "chunked":
            body, data, is_complete = _dechunk(data)
        elif status >= 200:
            body, data = data, b""
        replies.append(Reply(status, headers, body, is_complete))
    return replies


def _dechunk(data: bytes) -> tuple[bytes, bytes, bool]:
    body = b""
    while match := re.match(rb"([0-9a-f]+)\r\n", data):
        size = int(match[1], 16)
        start = match.end()
        if len(data) < start + size + 2:
            return body + data[start:], b"", False
        body += data[start : start + size]
        data = data[start + size + 2 :]
        if not size:
            return body, data, True
    return body, b"", False


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        """Send each piece as a segment of its own; stops when the server has closed."""
        for piece in pieces:
            if self.reader.at_eof():
                return
            self.writer.write(piece)
            if len(piece) > 4096:
                await self.writer.drain()
            for _ in range(3):  # the server runs in this loop, and reads before the next segment is sent
                await asyncio.sleep(0)

    def end(self) -> None:
        """Half-close: shutdown(SHUT_WR)."""
        self.writer.write_eof()

    async def replies(self) -> list[Reply]:
        """Everything until the server closes."""
        data = b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while piece := await self.reader.read(1 << 16):
                    data += piece
        except ConnectionResetError:
            pass
        return replies_in(data)

    async def read_until(self, wanted: bytes) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.readuntil(wanted)

    async def close(self) -> None:
        """Close both sides."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class RawServer:
    """A server of our own, in this event loop."""

    server: HttpServer
    port: int
    task: asyncio.Task[None]
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        self.clients.append(Client(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.clients[-1]

    async def all_closed(self) -> None:
        """Wait until the server has no connections left."""
        async with asyncio.timeout(TIMEOUT_S):
            while self.server.state.connections:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """End it at once."""
        for client in self.clients:
            await client.close()
        self.server.drain()
        self.server.drain()
        await self.task

    async def ask(self, data: bytes, split: Split = whole, *, end: bool = False) -> list[Reply]:
        """All responses to these bytes on one connection, until the server closes it."""
        client = await self.connect()
        await client.send(*split(data))
        if end:
            client.end()
        return await client.replies()


def request(method: str, path: str, *lines: str, body: bytes = b"", host: str = "x") -> bytes:
    """A request with a `Host`, these header lines, and a content-length if it has a body."""
    length = [f"content-length: {len(body)}"] if body else []
    head = "\r\n".join([f"{method} {path} HTTP/1.1", f"host: {host}", *length, *lines])
    return head.encode("latin-1") + b"\r\n\r\n" + body


def chunked(body: bytes, size: int = 7, trailers: bytes = b"") -> bytes:
    """The body in chunks."""
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n" + trailers + b"\r\n"
