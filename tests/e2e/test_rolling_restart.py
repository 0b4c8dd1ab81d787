"""Two gateways behind a client that asks those that are ready: each restarts, and no request notices."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp

from tests.e2e.conftest import StartServer
from tests.e2e.server import STOP_TIMEOUT_S, Server
from tests.e2e.upstream import Upstream

DELAY_S = 2
"""Several probes long."""
PROBE_S = 0.2
NUM_STREAMS = 20
GAP_S = 0.02


@dataclass
class Balancer:
    """A client as a load balancer is one: it probes, and sends to those that answered last with 200."""

    http: aiohttp.ClientSession
    servers: list[Server]
    ready: set[str] = field(default_factory=set)
    whole: int = 0
    faults: list[str] = field(default_factory=list)
    has_ended: bool = False
    _turn: int = 0

    async def probe(self) -> None:
        while not self.has_ended:
            for server in list(self.servers):
                with contextlib.suppress(aiohttp.ClientError):
                    async with self.http.get(f"{server.root_url}/health/ready") as answer:
                        if answer.status == 200:
                            self.ready.add(server.root_url)
                            continue
                self.ready.discard(server.root_url)
            await asyncio.sleep(PROBE_S)

    async def ask(self, stream: bool) -> None:
        self._turn += 1
        url = sorted(self.ready)[self._turn % len(self.ready)]
        body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "roll"}]}
        try:
            async with self.http.post(f"{url}/v1/chat/completions", json=body) as answer:
                text = await answer.text()
        except aiohttp.ClientError as error:
            self.faults.append(repr(error))
            return
        if answer.status == 200 and (not stream or text.rstrip().endswith("data: [DONE]")):
            self.whole += 1
        else:
            self.faults.append(f"{answer.status}: {text[-200:]}")

    async def stream(self) -> None:
        while not self.has_ended:
            await self.ask(stream=True)

    async def load(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self.has_ended:
                tasks.create_task(self.ask(stream=False))
                await asyncio.sleep(GAP_S)

    async def until(self, *, ready: int) -> None:
        async with asyncio.timeout(60):
            while len(self.ready) != ready:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def balanced(servers: list[Server]) -> AsyncIterator[Balancer]:
    connections = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connections) as http, asyncio.TaskGroup() as tasks:
        balancer = Balancer(http, servers)
        tasks.create_task(balancer.probe())
        await balancer.until(ready=len(servers))
        for work in (balancer.load(), *(balancer.stream() for _ in range(NUM_STREAMS))):
            tasks.create_task(work)
        yield balancer
        balancer.has_ended = True


async def test_a_rolling_restart_refuses_and_cuts_nothing(
    start_server: StartServer, upstream: Upstream
) -> None:
    def start() -> Server:
        environment = {"PENSTOCK_DRAIN_DELAY_S": str(DELAY_S)}
        return start_server("--only", "--upstream", f"m={upstream.base_url}", environment=environment)

    servers = [await asyncio.to_thread(start) for _ in range(2)]
    async with balanced(servers) as balancer:
        for old in list(servers):
            old.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(old.process.wait, STOP_TIMEOUT_S) == 0
            servers.remove(old)
            balancer.ready.discard(old.root_url)
            servers.append(await asyncio.to_thread(start))
            await balancer.until(ready=2)
    assert balancer.faults == [] and balancer.whole > 100
