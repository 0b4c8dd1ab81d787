"""The verdict of a chaos: which ends of requests are honest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from tests.bench.chaos.client import Client
from tests.bench.chaos.course import Course
from tests.bench.chaos.doors import CHAT, MESSAGES, RESPONSES, Door
from tests.bench.chaos.killer import Kill
from tests.bench.chaos.outcomes import Sent

FINE = Course([Sent("a", 0.0, 1.0, "right"), Sent("a", 1.0, 1.0, "cut")], [Kill("engine", 2.0)], ["a"])
EXPECTED = "one two"


def chunk(text: str) -> str:
    return json.dumps({"choices": [{"delta": {"content": text}}]})


BUSY = {
    "error": {"message": "The engine is restarting.", "type": "server_error", "code": "model_unavailable"}
}
INTERNAL = {
    "error": {"message": "The gateway failed to answer this request; report it.", "type": "server_error"}
}
CHATS = {
    "right": ([chunk("one "), chunk("two"), "[DONE]"], True),
    "error": ([chunk("one "), json.dumps(BUSY)], True),
    "cut": ([chunk("one ")], False),
    "silent": ([chunk("one "), chunk("two")], True),
    "early": ([chunk("one "), "[DONE]"], True),
    "other": ([chunk("three"), json.dumps(BUSY)], True),
    "other, cut": ([chunk("three")], False),
    "internal": ([chunk("one "), json.dumps(INTERNAL)], True),
    "nameless": ([json.dumps({"error": {}})], True),
    "after the end": (["[DONE]", chunk("one two")], True),
}
"""Streams by name: the data of their events, and whether the response is complete."""


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client of a server that streams one of CHATS, by the model that is asked for."""

    async def answer(request: web.Request) -> web.StreamResponse:
        events, is_complete = CHATS[(await request.json())["model"]]
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {event}\n\n".encode())
        if not is_complete and request.transport is not None:
            request.transport.close()
        return response

    async def refuse(request: web.Request) -> web.Response:
        status = int(request.match_info["status"])
        return web.json_response(BUSY if status != 500 else INTERNAL, status=status)

    app = web.Application()
    app.router.add_post(CHAT.path, answer)
    app.router.add_get("/status/{status}", refuse)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        yield Client(f"http://127.0.0.1:{runner.addresses[0][1]}", session, "sk-a", 1, pause_s=0)
    await runner.cleanup()


@pytest.mark.parametrize("name", CHATS)
async def test_how_a_stream_ended(client: Client, name: str) -> None:
    outcome = await client.judge("a", lambda: client.streamed(CHAT, {"model": name}, EXPECTED))
    assert outcome == (name if name in ("right", "error", "cut") else "wrong")
    assert bool(client.sent[0].problem) is (outcome == "wrong")


@pytest.mark.parametrize(("status", "outcome"), [(503, "error"), (500, "wrong"), (404, "wrong")])
async def test_how_a_request_was_refused(client: Client, status: int, outcome: str) -> None:
    assert await client.judge("a", lambda: client.call("GET", f"/status/{status}")) == outcome


async def test_nothing_listens(client: Client) -> None:
    gone = Client("http://127.0.0.1:9", client._session, "sk-a", 1)
    assert await gone.judge("a", lambda: gone.call("GET", "/")) == "refused"


@pytest.mark.parametrize(
    ("door", "event"),
    [
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        (RESPONSES, {"type": "error", "code": "model_unavailable", "message": "busy"}),
        (RESPONSES, {"type": "response.failed", "response": {"error": {"code": "x", "message": "busy"}}}),
    ],
)
def test_errors_of_other_doors(door: Door, event: dict[str, object]) -> None:
    found = door.error(event)
    assert found is not None and found["message"] == "busy"


@pytest.mark.parametrize(
    ("course", "expected"),
    [
        (replace(FINE, sent=[Sent("a", 0.0, 1.0, "wrong", "it lies")]), "1 times a: it lies"),
        (replace(FINE, kinds=["a", "b"]), "b never had a right answer"),
        (replace(FINE, kills=[Kill("engine")]), "not ready after the kill of a engine"),
        (replace(FINE, others=["a file is lost"]), "a file is lost"),
    ],
)
def test_each_kind_of_failure_is_named(course: Course, expected: str) -> None:
    assert FINE.failures() == []
    assert expected in course.failures()


def test_the_tables() -> None:
    row = FINE.request_rows()[-1]
    assert (row["requests"], row["right"], row["cut"], row["wrong"]) == (2, 1, 1, 0)
    assert FINE.kill_rows() == [{"killed": "engine", "times": 1, "ready p50, s": 2.0, "ready p100, s": 2.0}]
