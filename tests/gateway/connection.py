"""One HTTP request to an ASGI application, message by message: slow readers, disconnects, streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message


class Connection:
    """Sends one request to `app` and reads the response message by message."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes | None = b"",
        headers: dict[str, str] | None = None,
    ) -> None:
        """`body` None: it is announced but never sent."""
        fields = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in fields.items()],
        }
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Message] = asyncio.Queue()
        self._may_send = asyncio.Event()
        self._may_send.set()
        if body is not None:
            self._incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.task: asyncio.Future[None] = asyncio.ensure_future(app(scope, self._incoming.get, self._send))

    @classmethod
    def post(cls, app: ASGIApp, path: str, body: dict[str, Any], **headers: str) -> Connection:
        return cls(app, "POST", path, json.dumps(body).encode(), headers)

    async def _send(self, message: Message) -> None:
        await self._may_send.wait()
        self._outgoing.put_nowait(message)

    def disconnect(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    def stop_reading(self) -> None:
        self._may_send.clear()

    def resume_reading(self) -> None:
        self._may_send.set()

    async def next(self) -> Message:
        """The next message of the response."""
        return await asyncio.wait_for(self._outgoing.get(), 5)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers."""
        message = await self.next()
        assert message["type"] == "http.response.start"
        return message["status"], {name.decode(): value.decode() for name, value in message["headers"]}

    async def body(self) -> bytes:
        """The rest of the body, to its end."""
        pieces = []
        while True:
            message = await self.next()
            pieces.append(message["body"])
            if not message.get("more_body", False):
                await asyncio.wait_for(self.task, 5)
                return b"".join(pieces)


def events(body: bytes) -> list[Any]:
    """The events of a stream, parsed as JSON except for "[DONE]"."""
    assert body.endswith(b"\n\n")
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        assert block.startswith("data: ") and "\n" not in block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found
