"""Requests that the gateway makes to its own application, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import InternalCaller
from gateway.web.http_call import INTERNAL_CALLER


@dataclass(slots=True)
class Reply:
    """A whole response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    body: bytes = b""


async def not_started(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands where the application will, until the worker is built."""
    raise RuntimeError("a request of the gateway to itself came before its application was there")


async def post(
    app: ASGIApp,
    path: str,
    body: bytes,
    caller: InternalCaller,
    more_scope: Mapping[str, Any] = MappingProxyType({}),
    on_piece: Callable[[bytes], None] | None = None,
) -> Reply:
    """POST a JSON body as `caller`. It takes the way of every other request, authentication excepted.

    `more_scope` may have `headers`; `on_piece` gets the pieces of a successful answer's body in its place.
    """
    pieces: list[bytes] = []
    reply = Reply()
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()  # this client never disconnects
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]
            }
        elif on_piece is not None and reply.status == 200:
            on_piece(message.get("body", b""))
        else:
            pieces.append(message.get("body", b""))

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode("ascii"),
        "query_string": b"",
        "client": None,
        INTERNAL_CALLER: caller,
        **more_scope,
    }
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope["headers"] = [*own, *scope.get("headers", ())]
    await app(scope, receive, send)
    reply.body = b"".join(pieces)
    return reply
