from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.routing import Router
from starlette.types import Message

from gateway.errors import InvalidRequest
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.asgi_endpoint import Door
from gateway.web.http_call import Call
from tests.gateway.connection import Connection, events


def door(endpoint: Any, *resources: Any) -> Router:  # noqa: ANN401
    opens = Door(Telemetry(OFF, Metrics(())))
    return opens.router([opens.route("GET", "/x", "other", endpoint)], resources)


class Part:
    def __init__(self, name: str, log: list[str], *, fails: bool = False) -> None:
        self.name = name
        self.log = log
        self.fails = fails

    async def start(self) -> None:
        if self.fails:
            raise RuntimeError(f"{self.name} cannot start")
        self.log.append(f"start {self.name}")

    async def close(self) -> None:
        self.log.append(f"close {self.name}")


async def live(app: Router, sent: list[Message]) -> None:
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})
    incoming.put_nowait({"type": "lifespan.shutdown"})

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, incoming.get, send)


async def nothing(call: Call) -> None:
    await call.respond(b"{}")


async def test_parts_are_opened_in_order_and_closed_in_reverse() -> None:
    log: list[str] = []
    sent: list[Message] = []
    await live(door(nothing, Part("a", log), Part("b", log)), sent)
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert log == ["start a", "start b", "close b", "close a"]


async def test_a_part_that_cannot_start_closes_those_that_did() -> None:
    log: list[str] = []
    sent: list[Message] = []
    with pytest.raises(RuntimeError, match="b cannot start"):
        await live(door(nothing, Part("a", log), Part("b", log, fails=True)), sent)
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert log == ["start a", "close a"]


async def test_get_also_takes_head() -> None:
    assert (await Connection(door(nothing), "HEAD", "/x").head())[0] == 200
    assert (await Connection(door(nothing), "POST", "/x").head())[0] == 405


async def test_an_error_inside_a_stream_is_its_last_event() -> None:
    async def fails(call: Call) -> None:
        await call.start_stream()
        await call.write(b'data: {"n":1}\n\n')
        raise InvalidRequest("no more", code="c")

    connection = Connection(door(fails), "GET", "/x")
    status, headers = await connection.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert headers["cache-control"] == "no-cache"
    first, last = events(await connection.body())
    assert (first, last["error"]["code"]) == ({"n": 1}, "c")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_is_cut_off_at_shutdown_says_so(is_stream: bool) -> None:
    waits = asyncio.Event()

    async def hangs(call: Call) -> None:
        if is_stream:
            await call.start_stream()
        waits.set()
        await asyncio.get_running_loop().create_future()

    connection = Connection(door(hangs), "GET", "/x")
    await waits.wait()
    connection.task.cancel()
    status, _ = await connection.head()
    body = (await connection.next())["body"]
    assert status == (200 if is_stream else 503)
    assert b"shutting down" in body and body.startswith(b"data: ") == is_stream
    with pytest.raises(asyncio.CancelledError):
        await connection.task


async def test_headers_that_http_cannot_carry_are_left_out() -> None:
    async def answers(call: Call) -> None:
        await call.respond(b"{}", headers={"x-good": "a b", "x-bad": "a\r\nset-cookie: b"})

    _, headers = await Connection(door(answers), "GET", "/x").head()
    assert headers["x-good"] == "a b" and "x-bad" not in headers


async def test_endpoints_without_a_label_are_not_counted() -> None:
    metrics = Metrics(())
    opens = Door(Telemetry(OFF, metrics))
    app = opens.router([opens.route("GET", "/health", "", nothing)])
    connection = Connection(app, "GET", "/health")
    assert (await connection.head())[0] == 200
    await connection.body()
    assert b"requests_total{" not in metrics.render()
