"""An upstream in place of nginx: answers every request at once with the same chat completion. PORT."""

from __future__ import annotations

import asyncio
import sys

from tests.bench.gateway import _answer


class _Instant(asyncio.Protocol):
    def __init__(self) -> None:
        body = _answer().encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self._response = head.encode() + body
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            length = (
                int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            )
            if len(self._received) < end + 4 + length:
                return
            self._received = self._received[end + 4 + length :]
            self._transport.write(self._response)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Instant, "127.0.0.1", port)
    await server.serve_forever()


asyncio.run(main(int(sys.argv[1])))
