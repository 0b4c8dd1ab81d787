"""Limits hold over one worker, four workers, and three gateways on one Redis; what is set aside returns."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest

from tests.cache.redis_server import RedisServer
from tests.e2e.conftest import StartServer
from tests.e2e.server import STOP_TIMEOUT_S, Server, command_line, descendants
from tests.e2e.upstream import Upstream

SETUPS = ("one worker", "four workers", "three gateways")
KINDS = {"requests": "requests_per_day: 50", "tokens": "tokens_per_day: 400", "usd": "usd_per_day: 400"}
"""The upstream's answers have used 8 tokens, at 1 USD each."""
LIMITS = KINDS | {
    "concurrency": "concurrent_requests: 50",
    "killed": "concurrent_requests: 50",
    "away": "concurrent_requests: 50",
    "chaos": "concurrent_requests: 10, tokens_per_day: 400",
}
FIVE_TOKENS = "hold and then answer"
POLICIES = """
models:
  m:
    upstream: {{base_url: {url}}}
    price: {{input_usd_per_million_tokens: 1000000, output_usd_per_million_tokens: 1000000}}
tenants:
{tenants}
{replicas}
"""


def key(tenant: str) -> str:
    return f"sk-{tenant}"


@dataclass
class World:
    """Servers that share limits, and the upstream behind all of them."""

    setup: str
    servers: list[Server]
    upstream: Upstream
    redis: RedisServer | None = None
    _turn: int = 0

    async def ask(self, tenant: str, text: str = FIVE_TOKENS, *, stream: bool = False) -> int:
        """The status; each call is a connection of its own, so any worker may get it."""
        self._turn += 1
        url = self.servers[self._turn % len(self.servers)].base_url
        body = {
            "model": "m",
            "max_tokens": 3,
            "stream": stream,
            "messages": [{"role": "user", "content": text}],
        }
        headers = {"authorization": f"Bearer {key(tenant)}"}
        connector = aiohttp.TCPConnector(force_close=True)
        async with (
            aiohttp.ClientSession(connector=connector) as http,
            http.post(f"{url}/chat/completions", json=body, headers=headers) as answer,
        ):
            await answer.read()
            return answer.status

    def num_faults(self) -> float:
        """How often the store of limits did not answer in time."""
        return sum(
            server.metric("penstock_faults_total", part="limits", fault="unavailable")
            for server in self.servers
        )

    async def known(self, tasks: list[asyncio.Task[int]], before: int) -> None:
        """Wait until each of these is refused or with the upstream, which had seen that number `before`."""
        async with asyncio.timeout(60):
            while len(self.upstream.seen) - before + sum(task.done() for task in tasks) < len(tasks):
                await asyncio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def holding(self, tenant: str, count: int) -> AsyncIterator[list[asyncio.Task[int]]]:
        """Requests whose answers wait; all that are not refused are under way inside the block."""
        self.upstream.released.clear()
        before = len(self.upstream.seen)
        tasks = [asyncio.create_task(self.ask(tenant)) for _ in range(count)]

        await self.known(tasks, before)
        try:
            yield tasks
        finally:
            self.upstream.released.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            for server in self.servers:  # which give back what a request held after its last byte
                await asyncio.to_thread(server.settle)


@pytest.fixture(scope="module")
def upstream_of_limits() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.released.set()
    upstream.close()


@pytest.fixture(scope="module", params=SETUPS)
def world(
    request: pytest.FixtureRequest,
    start_module_server: StartServer,
    upstream_of_limits: Upstream,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("policies")
    redis = RedisServer(folder) if request.param == "three gateways" else None
    names = "\n".join(
        f"  {name}: {{keys: [key-{sha256(key(name).encode()).hexdigest()[:8]}], limits: {{{limits}}}}}"
        for name, limits in LIMITS.items()
    )
    replicas = "" if redis is None else "replicas: {redis_url_env: LIMITS_REDIS, timeout_ms: 10000}"
    text = POLICIES.format(url=upstream_of_limits.base_url, tenants=names, replicas=replicas)
    (folder / "all.yaml").write_text(text)
    environment = {"PENSTOCK_API_KEYS": ",".join(map(key, LIMITS))}
    if redis is not None:
        environment["LIMITS_REDIS"] = redis.url
    workers = "4" if request.param == "four workers" else "1"
    arguments = ("--policies", str(folder), "--workers", workers)
    servers = [
        start_module_server(*arguments, environment=environment) for _ in range(1 if redis is None else 3)
    ]
    yield World(request.param, servers, upstream_of_limits, redis)
    for server in servers:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(STOP_TIMEOUT_S) == 0
    if redis is not None:
        redis.kill()


@pytest.mark.parametrize("kind", [*KINDS, "concurrency"])
async def test_200_at_once_do_not_pass_a_limit_for_50(world: World, kind: str) -> None:
    async with world.holding(kind, 200) as tasks:
        assert {task.result() for task in tasks if task.done()} == {429}
    found = Counter([await task for task in tasks])
    again = Counter(await asyncio.gather(*(world.ask(kind) for _ in range(50))))
    assert set(found) | set(again) <= {200, 429}
    if world.num_faults():  # a machine this busy makes SQLite late; no share knows what others just gave out
        assert world.redis is None and 30 <= found[200] < 100
        return
    assert found == {200: 50, 429: 150}
    assert again == ({200: 50} if kind == "concurrency" else {429: 50})


async def test_all_returns_after_errors_cuts_and_disconnects(world: World) -> None:
    """Forty answers fit; those that fail or are left early cost less, and hold nothing."""
    running: list[asyncio.Task[int]] = []
    texts = ["status 400", "status 503", "cut", "drip", "echo of five tokens."]
    for number in range(60):
        text = texts[number % len(texts)]
        running.append(asyncio.create_task(world.ask("chaos", text, stream=number % 2 == 0)))
        if number % 7 == 0:
            await asyncio.sleep(0.05)
            running[-1].cancel()
    async with asyncio.timeout(60):
        while not all(task.done() for task in running):
            for task in running:
                if not task.done():
                    task.cancel()
            await asyncio.sleep(0.05)
    async with asyncio.timeout(30):  # what has been left is noticed, and settled
        while True:
            async with world.holding("chaos", 12) as tasks:
                refused = sum(task.done() for task in tasks)
            statuses = Counter([await task for task in tasks])
            if statuses[200] == 10:
                break
            await asyncio.sleep(0.2)
    assert refused == 2 and statuses == {200: 10, 429: 2}


async def test_what_a_killed_worker_held_is_free_within_ten_seconds(world: World) -> None:
    if world.setup != "four workers":
        pytest.skip("the others have one worker each")
    (server,) = world.servers
    async with world.holding("killed", 50) as tasks:
        assert await world.ask("killed") == 429
        workers = [
            pid for pid in descendants(server.process.pid) if b"gateway.wiring.worker" in command_line(pid)
        ]
        assert len(workers) == 4
        for pid in workers:  # the first one that has some of the connections
            os.kill(pid, signal.SIGKILL)
            await asyncio.wait(tasks, timeout=3, return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() for task in tasks):
                break
        await asyncio.wait(tasks, timeout=0.5)
        lost = sum(task.done() for task in tasks)
        assert 0 < lost < 50
        more: list[asyncio.Task[int]] = []
        killed_s = time.monotonic()
        async with asyncio.timeout(30):
            while len(more) < lost:
                before = len(world.upstream.seen)
                round_ = [asyncio.create_task(world.ask("killed")) for _ in range(lost - len(more))]
                await world.known(round_, before)
                assert all(task.result() == 429 for task in round_ if task.done())
                more += [task for task in round_ if not task.done()]
                if more:
                    assert time.monotonic() - killed_s < 12
        assert await world.ask("killed") == 429
    assert [await task for task in more] == [200] * lost


async def test_while_redis_is_away_each_gateway_has_its_share(world: World) -> None:
    if world.redis is None:
        pytest.skip("the others have no Redis")
    async with world.holding("away", 20) as first:
        assert not any(task.done() for task in first)
        world.redis.kill()
        async with world.holding("away", 100) as second:
            admitted = sum(not task.done() for task in second)
            assert 20 <= admitted <= 30
            assert all([("limits" in await stores(server)) for server in world.servers])
            world.redis.start()
            async with asyncio.timeout(30):
                while any([("limits" in await stores(server)) for server in world.servers]):
                    await asyncio.sleep(0.1)
            async with world.holding("away", 40) as third:
                assert sum(not task.done() for task in third) == 30 - admitted
    async with world.holding("away", 60) as last:
        assert sum(not task.done() for task in last) == 50


async def stores(server: Server) -> dict[str, str]:
    async with aiohttp.ClientSession() as http, http.get(f"{server.root_url}/health/ready") as answer:
        found: dict[str, str] = (await answer.json()).get("stores", {})
        return found
