"""GET /admin/live: what engines, workers and upstreams do now, once a second while a client reads.

All streams of a worker send the same snapshot, and none is made while there is no stream. Requests in flight
are read from memory that all workers share, so that a worker that hangs is shown too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil

from backend.server.engine_client import EngineClient
from backend.server.engine_messages import EngineStats
from backend.server.quote import wait_s
from gateway.admin.access import AdminAccess
from gateway.errors import ClientGone, RateLimited, retry_after
from gateway.exchange.model_table import ModelTable
from gateway.exchange.shape import encode
from gateway.fleet.target import MIN_LATENCY_S, Target
from gateway.processes.status import Statuses
from gateway.processes.worker_peers import WorkerPeers
from gateway.requests import refusals
from gateway.telemetry.metrics import Metrics
from gateway.web.http_call import ASKS, GOES_ON, HttpCall
from gateway.web.server_state import STOP
from policies.names import split_replica

INTERVAL_S = 1.0
MAX_STREAMS = 64
STALLED_S = 30.0
"""A client that has read nothing for this long is left."""
END_S = 0.25
"""How long the end of a stream may wait for its client."""
NUM_SAMPLES, MAX_AGE_S = 4, 10.0
"""Heartbeats come twice a second: speeds are means over three seconds."""
KEEP_ALIVE = b": alive\n\n"
WHAT = "live"
"""What a worker asks the others, which tell the version of their policies and the size of their caches."""


Sample = tuple[float, Mapping[str, EngineStats]]


@dataclass(slots=True, eq=False)
class LiveFeed:
    """What all versions of the policies share in one worker."""

    release: str = ""  # of Penstock
    version: str = ""  # of the policies that new requests see
    num_streams: int = 0
    latest: bytes = b""
    latest_s: float = -1.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=NUM_SAMPLES))

    def add(self, now_s: float, stats: Mapping[str, EngineStats]) -> Sample:
        """Keep a sample of all engines; the one to compare it with."""
        while self.samples and now_s - self.samples[0][0] > MAX_AGE_S:
            self.samples.popleft()
        self.samples.append((now_s, stats))
        return self.samples[0]


@dataclass(frozen=True, slots=True)
class LiveView:
    """What one version of the policies knows."""

    version: str
    models: ModelTable
    engines: Mapping[str, EngineClient]
    statuses: Statuses
    metrics: Metrics
    peers: WorkerPeers

    async def snapshot(self, feed: LiveFeed) -> dict[str, Any]:
        """All of it, in names and numbers."""
        told = (await self.peers.ask_all(WHAT)).by_worker
        now_s, models = time.monotonic(), self.models.models
        before_s, before = feed.add(now_s, {name: client.stats for name, client in self.engines.items()})
        passed_s = now_s - before_s
        return {
            "object": "live",
            "at_s": time.time(),
            "worker": self.peers.number,
            "release": feed.release,
            "policy": self.version,
            "streams": feed.num_streams,
            "engines": [
                self._engine(name, client, _added(before.get(name), client.stats, passed_s))
                for name, client in self.engines.items()
            ],
            "encoders": [
                {"name": name, **asdict(model.state())}
                for name, model in models.items()
                if model.kind == "encoder"
            ],
            "targets": [
                _target(name, target)
                for name, model in models.items()
                if model.fleet is not None
                for target in model.fleet.targets
            ],
            "workers": [
                {"number": number, "pid": pid, "in_flight": num, "uptime_s": _uptime_s(pid)}
                | told.get(number, {"policy": None, "cache_entries": None})
                for number, pid, num in self.metrics.workers()
            ],
        }

    def _engine(self, name: str, client: EngineClient, speeds: Mapping[str, Any]) -> dict[str, Any]:
        stats, (model, replica) = client.stats, split_replica(name)
        prompt = stats.prompt_tokens_total + stats.prefix_hit_tokens_total
        status = self.statuses.get(name)
        return {
            "name": model,
            "replica": replica,
            "place": client.place if client.is_remote else "",
            "phase": _phase(client, status.phase if status is not None else "starting"),
            "running": stats.num_running,
            "max_running": stats.max_running,
            "waiting": stats.num_waiting,
            "queue_s": wait_s(stats),
            "pages_used": stats.total_pages - stats.free_pages,
            "pages_total": stats.total_pages,
            "prefix_hit_share": stats.prefix_hit_tokens_total / prompt if prompt else None,
            **speeds,
            "drafters": [
                {"name": drafter, "proposed": proposed, "accepted": accepted}
                for drafter, (proposed, accepted) in stats.drafter_tokens_total.items()
            ],
            "adapters": sorted(client.adapters),
            "adapters_on_device": stats.adapters_on_device,
        }


class LiveEndpoint:
    """The stream, and one snapshot for `once=1`."""

    def __init__(self, access: AdminAccess, view: LiveView, feed: LiveFeed) -> None:
        self._access = access
        self._view = view
        self._feed = feed

    async def show(self, call: HttpCall) -> None:
        """Raises ApiError: also where a stream's caller may not read any more."""
        self._access.look(call)
        for name, value in call.query.items():
            if name != "once":
                raise refusals.unknown_field(name, ["once"])
            if value not in ("0", "1"):
                raise refusals.wrong_value("once", "expected 0 or 1")
        if call.query.get("once") == "1" or call.scope["method"] == "HEAD":
            await call.respond(await self._snapshot())
            return
        if self._feed.num_streams >= MAX_STREAMS:
            raise RateLimited(
                f"{MAX_STREAMS} clients read /admin/live of this worker already: close one, or send once=1.",
                code="too_many_streams",
                headers=retry_after(INTERVAL_S),
            )
        self._feed.num_streams += 1
        try:
            if not call.is_started:
                await call.start_stream()
            await self._stream(call)
        finally:
            self._feed.num_streams -= 1

    async def _stream(self, call: HttpCall) -> None:
        """Until the client leaves or the server drains; new policies go on with it."""
        stop: asyncio.Event = call.scope.get(STOP) or asyncio.Event()
        version = self._feed.version
        while not stop.is_set():
            if self._feed.version != version:
                call.scope[GOES_ON] = ASKS
                return
            self._access.look(call)  # the key may have been revoked
            event = KEEP_ALIVE + b"data: " + await self._snapshot() + b"\n\n"
            writing = asyncio.ensure_future(call.write(event))
            leaving = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait({writing, leaving}, timeout=STALLED_S, return_when="FIRST_COMPLETED")
                if not writing.done():
                    raise ClientGone("The client reads nothing.")
                await writing
                await asyncio.wait({leaving}, timeout=INTERVAL_S)
            finally:
                writing.cancel()
                leaving.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call.end_stream(), END_S)

    async def _snapshot(self) -> bytes:
        """The latest one, or a new one where that is old."""
        feed = self._feed
        async with feed.lock:
            now_s = time.monotonic()
            if now_s - feed.latest_s > 0.9 * INTERVAL_S or feed.latest_s < 0:
                feed.latest, feed.latest_s = encode(await self._view.snapshot(feed)), now_s
            return feed.latest


def _phase(client: EngineClient, status: str) -> str:
    if client.refusal is not None:
        return f"refused: {client.refusal.reason}"
    if client.ready:
        return "ready"
    if client.is_draining:
        return "draining"
    return "away" if client.is_remote else "hung" if client.hello is not None else status


def _target(model: str, target: Target) -> dict[str, Any]:
    calls, failed = target.health.recent()
    latency_s = target.latency.value_s()  # decays while nothing is asked: below the least it says nothing
    return {
        "model": model,
        "place": target.place,
        "state": target.health.trouble or "ready",
        "running": target.num_running,
        "error_share": failed / calls if calls else None,
        "latency_s": latency_s if latency_s >= MIN_LATENCY_S else None,
        "cooldown_s": target.health.out_s(),
    }


def _uptime_s(pid: int) -> float | None:
    """None: it has ended."""
    try:
        return max(0.0, time.time() - psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def _added(before: EngineStats | None, now: EngineStats, passed_s: float) -> dict[str, float | None]:
    """What steps did since; None for the first sample, and where the engine has started again."""
    found: dict[str, float | None] = dict.fromkeys(
        ("tokens_per_step", "input_tokens_per_s", "output_tokens_per_s")
    )
    if before is None or passed_s <= 0 or now.steps_total < before.steps_total:
        return found
    if steps := now.steps_total - before.steps_total:
        found["tokens_per_step"] = (now.step_tokens_sum - before.step_tokens_sum) / steps
    found["input_tokens_per_s"] = (now.prompt_tokens_total - before.prompt_tokens_total) / passed_s
    found["output_tokens_per_s"] = (now.generated_tokens_total - before.generated_tokens_total) / passed_s
    return found
