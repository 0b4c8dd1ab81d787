"""The head of a whole response goes with its body; that of a stream goes first."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.settings import HttpLimits
from gateway.web.request_cycle import RequestCycle
from gateway.web.server_state import ServerState

START: Message = {"type": "http.response.start", "status": 200}
JSON = (b"content-type", b"application/json")


async def nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


class Wire:
    """A connection that keeps what is written."""

    is_lost = is_write_paused = False

    def __init__(self) -> None:
        self.server = ServerState(nothing, HttpLimits())
        self.written: list[bytes] = []
        self.has_ended = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    async def drain(self) -> None: ...

    def resume_reading(self) -> None: ...

    def end_cycle(self, cycle: RequestCycle) -> None:
        self.has_ended = True


async def written(*messages: Message, method: str = "GET", fails: bool = False) -> list[bytes]:
    wire = Wire()
    scope: dict[str, Any] = {"type": "http", "method": method, "http_version": "1.1", "client": None}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        if fails:
            raise RuntimeError("x")

    cycle = RequestCycle(wire, scope, keep_alive=True)
    cycle.end_body()
    await cycle.run(app)
    assert wire.has_ended
    return wire.written


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def start(length: int) -> Message:
    return {**START, "headers": [JSON, (b"content-length", b"%d" % length)]}


async def test_a_whole_response_is_one_write() -> None:
    (data,) = await written(start(2), body(b"{}"))
    assert data.startswith(b"HTTP/1.1 200 OK\r\n") and data.endswith(b"content-length: 2\r\n\r\n{}")


async def test_pieces_of_a_known_length_follow_the_first_one() -> None:
    first, second = await written(start(4), body(b"ab", more=True), body(b"cd"))
    assert first.endswith(b"\r\n\r\nab") and second == b"cd"


@pytest.mark.parametrize("length", [0, 2])
async def test_a_head_alone_is_written_too(length: int) -> None:
    (data,) = await written(start(length), body(b"ab"[:length]), method="HEAD")
    assert data.endswith(b"content-length: %d\r\n\r\n" % length)


async def test_the_head_of_a_stream_does_not_wait_for_its_first_piece() -> None:
    head, piece, last = await written({**START, "headers": []}, body(b"a", more=True), body(b""))
    assert head.endswith(b"transfer-encoding: chunked\r\n\r\n")
    assert (piece, last) == (b"1\r\na\r\n", b"0\r\n\r\n")


async def test_a_response_that_breaks_before_its_body_has_no_head() -> None:
    """The client sees the connection end, not a response of the announced length."""
    assert await written(start(2), fails=True) == []


@pytest.mark.parametrize("status", [499, 529])
async def test_a_status_that_no_standard_names_is_sent_without_a_phrase(status: int) -> None:
    head, *_ = await written({**START, "status": status, "headers": [(b"content-length", b"0")]}, body(b""))
    assert head == b"HTTP/1.1 %d \r\ncontent-length: 0\r\n\r\n" % status
