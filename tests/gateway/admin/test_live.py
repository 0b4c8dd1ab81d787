"""The live view: what engines and upstreams report, one snapshot for all streams, and how streams end."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from starlette.types import Message, Receive, Scope, Send

from backend.server.engine_client import EngineClient
from backend.server.engine_messages import EngineStats, Heartbeat, Hello
from gateway.admin import live
from gateway.admin.live import LiveFeed, LiveView, _target, _uptime_s
from gateway.auth import KeyRing, Principal, tenant_id
from gateway.errors import Unauthorized, UpstreamFailed
from gateway.exchange.model_table import ModelTable
from gateway.fleet.memory import FleetMemory
from gateway.fleet.target import Target
from gateway.processes.status import ProcessStatus
from gateway.providers.fake import FakeProvider
from gateway.settings import Settings
from gateway.web.server_state import STOP
from gateway.web.versioned_app import VersionedApp
from gateway.wiring.app import build_version
from gateway.wiring.worker_parts import WorkerParts, build_parts
from policies.document import ModelEntry, Policies
from policies.tenants import AdminSection
from policies.upstream import UpstreamModel
from tests.gateway.conftest import http_client
from tests.gateway.connection import Connection

KEYS = {name: f"sk-{name}" for name in ("a", "boss")}
BOSS = {"authorization": f"Bearer {KEYS['boss']}"}
HELLO = Hello("pico", "/none", "r", 256, 100, 64, "cpu", "float32")


def policies(version: str = "v1", principals: tuple[str, ...] = ("boss",)) -> Policies:
    return Policies(
        models={"theirs": ModelEntry(upstream=UpstreamModel(base_url="http://127.0.0.1:1/v1"))},
        admin=AdminSection(principals=list(principals)),
        version=version,
    )


class Worker:
    """A worker without a server: its versions, and the event that is set when it drains."""

    def __init__(self) -> None:
        settings = Settings(
            api_keys=tuple(KEYS.values()), key_tenants={tenant_id(key): name for name, key in KEYS.items()}
        )
        self.settings = settings
        self.parts: WorkerParts = build_parts(settings, ["theirs"])
        self.stop = asyncio.Event()
        self.parts.use_policies(policies())
        self.app = VersionedApp(1, build_version(settings, policies(), self.parts).router)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[STOP] = self.stop
        await self.app(scope, receive, send)

    async def switch(self, to: Policies) -> None:
        await self.app.open(2, build_version(self.settings, to, self.parts).router)
        self.app.switch(2)
        self.parts.use_policies(to)

    def open(self, **headers: str) -> Connection:
        return Connection(self, "GET", "/admin/live", headers=headers or BOSS)


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr(live, "INTERVAL_S", 0.01)
    worker = Worker()
    async with worker.app.lifespan_context(worker.app):
        yield worker
    await worker.parts.close()


@pytest.fixture
async def http(worker: Worker) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(worker, **BOSS) as client:  # type: ignore[arg-type]
        yield client


def event(message: Message) -> dict[str, Any]:
    comment, data, rest = message["body"].decode().split("\n\n")
    assert comment.startswith(":") and rest == ""
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return found


async def opened(worker: Worker) -> Connection:
    connection = worker.open()
    status, headers = await connection.head()
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    return connection


def view(*engines: tuple[str, EngineClient], phase: str = "loading") -> LiveView:
    parts = build_parts(Settings(), ["m"])
    statuses = {name: ProcessStatus(phase=phase) for name, _ in engines}
    return LiveView("v1", ModelTable([], {}), dict(engines), statuses, parts.metrics, parts.peers)


async def engines(seen: LiveView, feed: LiveFeed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await seen.snapshot(feed))["engines"]
    return found


def engine(**stats: object) -> EngineClient:
    client = EngineClient("/none")
    client.deliver(HELLO)
    client.deliver(Heartbeat(1, EngineStats(**stats)))  # type: ignore[arg-type]
    return client


async def test_engines_tell_what_they_do() -> None:
    client = engine(
        num_running=3,
        max_running=8,
        num_waiting=2,
        free_pages=40,
        total_pages=64,
        prompt_tokens_total=30,
        prefix_hit_tokens_total=90,
        decode_step_s=0.25,
        drafter_tokens_total={"ngram": [10, 7]},
        adapters_on_device=1,
    )
    shown = await engines(view(("pico", client), ("pico#1", EngineClient("/none"))), LiveFeed())
    assert [(each["name"], each["replica"], each["phase"]) for each in shown] == [
        ("pico", "0", "ready"),
        ("pico", "1", "loading"),
    ]
    first = shown[0]
    assert (first["running"], first["max_running"], first["waiting"]) == (3, 8, 2)
    assert (first["pages_used"], first["pages_total"], first["prefix_hit_share"]) == (24, 64, 0.75)
    assert first["drafters"] == [{"name": "ngram", "proposed": 10, "accepted": 7}]
    assert first["queue_s"] == 0.25 and first["input_tokens_per_s"] is None
    assert shown[1]["prefix_hit_share"] is None


async def test_speeds_are_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now_s)
    client, feed = engine(), LiveFeed()
    seen = view(("pico", client))
    for steps in range(6):
        client.stats = EngineStats(
            steps_total=steps,
            step_tokens_sum=8.0 * steps,
            prompt_tokens_total=6 * steps,
            generated_tokens_total=2 * steps,
        )
        [shown] = await engines(seen, feed)
        now_s += 1
    assert (shown["input_tokens_per_s"], shown["output_tokens_per_s"]) == (6.0, 2.0)
    assert shown["tokens_per_step"] == 8.0
    client.stats = EngineStats()  # it has started again
    assert (await engines(seen, feed))[0]["input_tokens_per_s"] is None
    now_s += 3600
    assert (await engines(seen, feed))[0]["output_tokens_per_s"] is None


async def test_targets_tell_their_health(worker: Worker) -> None:
    health = worker.parts.fleet.health("theirs", "http://127.0.0.1:1/v1")
    for _ in range(5):
        health.failed("failing", UpstreamFailed("away"))
    async with http_client(worker, **BOSS) as client:  # type: ignore[arg-type]
        [target] = (await client.get("/admin/live?once=1")).json()["targets"]
    assert (target["model"], target["state"], target["error_share"]) == ("theirs", "failing", 1.0)
    assert 0 < target["cooldown_s"] <= 5 and target["latency_s"] is None


async def test_one_document(http: httpx.AsyncClient) -> None:
    answer = (await http.get("/admin/live", params={"once": "1"})).json()
    assert (answer["object"], answer["policy"], answer["worker"]) == ("live", "v1", 0)
    [worker] = answer["workers"]
    assert worker["in_flight"] == 0 and worker["uptime_s"] > 0
    assert (worker["policy"], worker["cache_entries"]) == ("v1", 0)
    assert (await http.head("/admin/live")).content == b""  # and it ends


async def test_nothing_is_computed_without_a_stream(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LiveFeed] = []
    snapshot = LiveView.snapshot

    async def count(self: LiveView, feed: LiveFeed) -> dict[str, Any]:
        made.append(feed)
        return await snapshot(self, feed)

    monkeypatch.setattr(LiveView, "snapshot", count)
    streams = [await opened(worker) for _ in range(20)]
    monkeypatch.setattr(live, "INTERVAL_S", 600.0)  # from the next snapshot on
    bodies = [[event(await each.next()) for _ in range(1)] for each in streams]
    assert len(bodies) == 20 and len(made) < 20
    worker.stop.set()
    await asyncio.gather(*(each.task for each in streams))
    before = len(made)
    await asyncio.sleep(0)
    assert len(made) == before and worker.parts.live.num_streams == 0


async def test_a_stream_ends_when_the_server_drains(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "INTERVAL_S", 600.0)
    stream = await opened(worker)
    event(await stream.next())
    worker.stop.set()
    assert await stream.next() == {"type": "http.response.body", "body": b"", "more_body": False}
    await stream.task


async def test_a_stream_goes_on_under_new_policies(worker: Worker) -> None:
    stream = await opened(worker)
    assert event(await stream.next())["policy"] == "v1"
    await worker.switch(policies("v2"))
    while event(await stream.next())["policy"] != "v2":
        pass
    while worker.app.oldest_serial != 2:  # the version before is not kept
        await asyncio.sleep(0)
    worker.stop.set()
    await stream.task


async def test_new_policies_may_end_a_stream(worker: Worker) -> None:
    stream = await opened(worker)
    event(await stream.next())
    await worker.switch(policies("v2", principals=()))
    last = b""
    while (message := await stream.next()).get("more_body"):
        last = message["body"]
    assert b"administration_forbidden" in message["body"] and b"v2" not in last
    await stream.task


async def test_a_stream_ends_once_its_key_is_revoked(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = await opened(worker)
    event(await stream.next())

    def identify(ring: KeyRing, authorization: str) -> Principal:
        assert authorization == BOSS["authorization"]
        raise Unauthorized("revoked")

    monkeypatch.setattr(KeyRing, "identify", identify)
    while (message := await stream.next()).get("more_body"):
        pass
    assert b"revoked" in message["body"] and worker.parts.live.num_streams == 0
    await stream.task


async def test_a_stream_ends_with_an_error_where_new_policies_have_no_console(worker: Worker) -> None:
    stream = await opened(worker)
    event(await stream.next())
    await worker.switch(replace(policies("v2"), console=False))
    while (message := await stream.next()).get("more_body"):
        pass
    assert message["type"] == "http.response.body" and b"unknown_url" in message["body"]
    await stream.task


async def test_64_streams_and_no_more(worker: Worker, http: httpx.AsyncClient) -> None:
    streams = [await opened(worker) for _ in range(live.MAX_STREAMS)]
    refused = await http.get("/admin/live")
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "too_many_streams"
    assert (await http.get("/admin/live?once=1")).status_code == 200
    worker.stop.set()
    await asyncio.gather(*(each.task for each in streams))
    worker.stop.clear()
    again = await opened(worker)
    worker.stop.set()
    await again.task


async def test_a_client_that_stops_reading_is_left(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STALLED_S", 0.02)
    stream = await opened(worker)
    stream.stop_reading()
    await asyncio.wait_for(stream.task, 30)
    assert worker.parts.live.num_streams == 0


async def test_a_client_that_stops_reading_holds_up_no_drain(worker: Worker) -> None:
    stream = await opened(worker)
    stream.stop_reading()
    worker.stop.set()
    await asyncio.wait_for(stream.task, 30)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("once=2", "once"),
        ("once=true", "once"),
        ("once=%00", "once"),
        ("twice=1", "twice"),
        ("once=1&since=1h", "since"),
        ("once=1%20OR%201=1", "once"),
    ],
)
async def test_bad_parameters_are_refused(http: httpx.AsyncClient, query: str, param: str) -> None:
    answer = await http.get(f"/admin/live?{query}")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


async def test_only_operators_may_look(worker: Worker) -> None:
    for query in ("", "?once=1"):
        async with http_client(worker) as client:  # type: ignore[arg-type]
            tenant = await client.get(f"/admin/live{query}", headers={"authorization": f"Bearer {KEYS['a']}"})
            assert tenant.status_code == 403 and "engines" not in tenant.text
            assert (await client.get(f"/admin/live{query}")).status_code == 401
            assert (await client.post(f"/admin/live{query}", headers=BOSS)).status_code == 405


def test_an_idle_targets_latency_says_nothing() -> None:
    now_s = [0.0]
    target = Target(FakeProvider(), FleetMemory().health("m", "p"), clock=lambda: now_s[0])
    shown = [_target("m", target)["latency_s"]]
    target.latency.answered(0.2)
    for now_s[0] in (0.0, 5.0, 600.0):
        shown.append(_target("m", target)["latency_s"])
    assert shown == [None, 0.2, pytest.approx(0.2 * math.exp(-0.5)), None]


def test_a_clock_that_is_set_back_gives_no_worker_a_negative_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert _uptime_s(os.getpid()) == 0.0
