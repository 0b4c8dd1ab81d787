"""A TCP server that plays back scripted bytes: an upstream that is slow, cut, malformed or correct."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One request as it came over the wire."""

    head: str
    headers: dict[str, str]
    body: bytes
    connection: int
    reader: asyncio.StreamReader


@dataclass
class ScriptedServer:
    """Answers every request with `script`; `connections` counts those ever opened."""

    script: Callable[[asyncio.StreamWriter, Seen], Awaitable[None]]
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    closed: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.seen.append(Seen(first, headers, body, number, reader))
                await self.script(writer, self.seen[-1])
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            self.closed.put_nowait(number)
            self.tasks.discard(task)


@asynccontextmanager
async def serving(
    script: Callable[[asyncio.StreamWriter, Seen], Awaitable[None]],
) -> AsyncIterator[ScriptedServer]:
    """Serve on a free loopback port."""
    server = ScriptedServer(script)
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(server.tasks):
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close in the loop's next round


def response(body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> bytes:
    """A whole response with its length."""
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One piece in chunked transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def always(*pieces: bytes, close: bool = False) -> Callable[[asyncio.StreamWriter, Seen], Awaitable[None]]:
    """A script that writes these pieces one by one, and then closes if told so."""

    async def script(writer: asyncio.StreamWriter, seen: Seen) -> None:
        await write_all(writer, pieces)
        if close:
            writer.close()

    return script


async def write_all(writer: asyncio.StreamWriter, pieces: Sequence[bytes]) -> None:
    """Write pieces so that they leave separately."""
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
