from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.middleware import Middleware
from starlette.routing import Router
from starlette.types import Message

from gateway.errors import InvalidRequest
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request import Telemetry
from gateway.telemetry.setup import OFF
from gateway.web.asgi_endpoint import RouteBuilder
from gateway.web.cors import cors_middleware
from gateway.web.http_call import HttpCall
from tests.gateway.connection import Connection, events


def app_with(handler: Any, *resources: Any) -> Router:  # noqa: ANN401
    builder = RouteBuilder(Telemetry(OFF, Metrics(())))
    return builder.router([builder.route("GET", "/x", "other", handler)], resources)


class FakeResource:
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


async def run_lifespan(app: Router, sent: list[Message]) -> None:
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "lifespan.startup"})
    incoming.put_nowait({"type": "lifespan.shutdown"})

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, incoming.get, send)


async def nothing(call: HttpCall) -> None:
    await call.respond(b"{}")


async def test_resources_are_opened_in_order_and_closed_in_reverse() -> None:
    log: list[str] = []
    sent: list[Message] = []
    await run_lifespan(app_with(nothing, FakeResource("a", log), FakeResource("b", log)), sent)
    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert log == ["start a", "start b", "close b", "close a"]


async def test_a_resource_that_cannot_start_closes_those_that_did() -> None:
    log: list[str] = []
    sent: list[Message] = []
    with pytest.raises(RuntimeError, match="b cannot start"):
        await run_lifespan(
            app_with(nothing, FakeResource("a", log), FakeResource("b", log, fails=True)), sent
        )
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert log == ["start a", "close a"]


async def test_get_also_takes_head() -> None:
    assert (await Connection(app_with(nothing), "HEAD", "/x").head())[0] == 200
    assert (await Connection(app_with(nothing), "POST", "/x").head())[0] == 405


@pytest.mark.parametrize("middleware", [(), cors_middleware(["https://a.example"])])
async def test_the_first_route_of_a_path_answers(middleware: Sequence[Middleware]) -> None:
    """Whole paths are found without a search, which must not change what is found."""

    def says(text: str) -> Any:  # noqa: ANN401
        async def answer(call: HttpCall) -> None:
            await call.respond(json.dumps([text, call.scope.get("path_params", {})]).encode())

        return answer

    builder = RouteBuilder(Telemetry(OFF, Metrics(())))
    paths = ("/x/first", "/x/{id:path}", "/x/late", "/y")
    app = builder.router([builder.route("GET", path, "other", says(path)) for path in paths], (), middleware)

    async def answer_at(path: str) -> list[Any]:
        connection = Connection(app, "GET", path)
        assert (await connection.head())[0] == 200
        found: list[Any] = json.loads(await connection.body())
        return found

    assert await answer_at("/x/first") == ["/x/first", {}]
    assert await answer_at("/x/late") == ["/x/{id:path}", {"id": "late"}]
    assert await answer_at("/y") == ["/y", {}]
    assert (await Connection(app, "GET", "/y/").head())[0] == 404


async def test_an_error_inside_a_stream_is_its_last_event() -> None:
    async def fails(call: HttpCall) -> None:
        await call.start_stream()
        await call.write(b'data: {"n":1}\n\n')
        raise InvalidRequest("no more", code="c")

    connection = Connection(app_with(fails), "GET", "/x")
    status, headers = await connection.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert headers["cache-control"] == "no-cache"
    first, last = events(await connection.body())
    assert (first, last["error"]["code"]) == ({"n": 1}, "c")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_request_cancelled_at_shutdown_gets_an_error(is_stream: bool) -> None:
    started = asyncio.Event()

    async def hangs(call: HttpCall) -> None:
        if is_stream:
            await call.start_stream()
        started.set()
        await asyncio.get_running_loop().create_future()

    connection = Connection(app_with(hangs), "GET", "/x")
    await started.wait()
    connection.task.cancel()
    status, _ = await connection.head()
    body = (await connection.next())["body"]
    assert status == (200 if is_stream else 503)
    assert b"shutting down" in body and body.startswith(b"data: ") == is_stream
    with pytest.raises(asyncio.CancelledError):
        await connection.task


async def test_headers_that_http_cannot_carry_are_left_out() -> None:
    async def answers(call: HttpCall) -> None:
        await call.respond(b"{}", headers={"x-good": "a b", "x-bad": "a\r\nset-cookie: b"})

    _, headers = await Connection(app_with(answers), "GET", "/x").head()
    assert headers["x-good"] == "a b" and "x-bad" not in headers


async def test_endpoints_without_a_label_are_not_counted() -> None:
    metrics = Metrics(())
    builder = RouteBuilder(Telemetry(OFF, metrics))
    app = builder.router([builder.route("GET", "/health", "", nothing)])
    connection = Connection(app, "GET", "/health")
    assert (await connection.head())[0] == 200
    await connection.body()
    assert b"requests_total{" not in metrics.render()
