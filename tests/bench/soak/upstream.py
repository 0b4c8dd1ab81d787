"""A provider with faults, one per path: `/ok/v1`, `/error/v1`, `/cut/v1`, `/stall/v1` and so on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

FAULTS = ("ok", "error", "cut", "stall", "garbage", "flood")
STALL_LIMIT_S = 1.0
"""The gateway's limit on the first token of `stall`, which never comes."""
FLOOD_EVENTS, FLOOD_TEXT = 600, "flood " * 680
"""About 2.5 MB: more than the socket buffers between a slow reader and the provider hold."""

_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def faulty_upstream() -> AsyncIterator[int]:
    """Listen on an ephemeral port, which is yielded."""
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One request per connection but for `ok`, whose connections are kept alive."""
    # Cancelled when the event loop ends; asyncio would log that as an error.
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
        keep_alive = True
        while keep_alive:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            body = json.loads(await reader.readexactly(length)) if length else {}
            fault = head.split(b" ", 2)[1].split(b"/")[1].decode()
            keep_alive = fault == "ok" and not body.get("stream")
            await _answer(fault, bool(body.get("stream")), reader, writer)
    writer.close()


async def _answer(
    fault: str, is_stream: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if fault == "stall":
        await reader.read()  # until the gateway gives up
    elif fault == "error":
        error = {"message": "scripted", "type": "server_error", "param": None, "code": None}
        writer.write(_whole(b"500 Internal Server Error", json.dumps({"error": error}).encode()))
    elif fault == "garbage":
        writer.write(_whole(b"200 OK", b'{"choices": [{"ind'))
    elif is_stream:
        await _stream(fault, writer)
    else:
        writer.write(_whole(b"200 OK", json.dumps(_completion()).encode()))
    await writer.drain()


async def _stream(fault: str, writer: asyncio.StreamWriter) -> None:
    writer.write(_STREAM_HEAD)
    for _ in range(FLOOD_EVENTS if fault == "flood" else 3):
        writer.write(_event({"content": FLOOD_TEXT if fault == "flood" else "word "}, None))
        await writer.drain()
    if fault != "cut":
        writer.write(_event({}, "stop") + b"data: [DONE]\n\n")


def _whole(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def _completion() -> dict[str, object]:
    message = {"role": "assistant", "content": "A scripted answer."}
    return {
        **{"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "remote"},
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13},
    }


def _event(delta: dict[str, str], finish_reason: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    shape = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000}
    return b"data: " + json.dumps({**shape, "model": "remote", "choices": [choice]}).encode() + b"\n\n"
