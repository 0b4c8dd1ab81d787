"""What holds of limits while the workers' store is away, slow, empty or late, with a real Redis server."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from gateway.accounting.accounts import Settled
from gateway.accounting.counters import Counters
from gateway.accounting.holds import Answer, RedisHolds
from gateway.accounting.lines import Line, Verdict
from gateway.accounting.shared_accounts import MAX_BATCH, SharedAccounts
from gateway.accounting.stores import RedisCounters
from gateway.errors import Unavailable
from policies.tenants import OnFailure
from tests.cache.redis_server import RedisServer

LIMIT = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path)
    yield found
    found.kill()


class Worker:
    """One gateway worker's accounts."""

    def __init__(
        self, server: RedisServer, on_failure: OnFailure = "share", *, timeout_s: float = 10.0
    ) -> None:
        """`timeout_s`: longer than a busy machine is busy."""
        self.faults: list[str] = []
        self.counters = Counters(RedisCounters(server.url, "p"))
        store = RedisHolds(server.url, "p", timeout_s)
        self.accounts = SharedAccounts(store, self.counters, on_failure, self.faults.append)

    async def ask(self, tokens: int = 1, *, scope: str = "tenant:t") -> Verdict:
        return await self.accounts.reserve(self.lines(tokens, scope))

    def lines(self, tokens: int = 1, scope: str = "tenant:t") -> list[Line]:
        return [
            Line("tokens_per_day", scope, LIMIT, None, tokens),
            Line("concurrent_requests", scope, LIMIT, None, 1),
        ]

    def end(self, verdict: Verdict, used: int) -> None:
        asked = self.lines()
        self.accounts.settle(
            [Settled(asked[0], verdict.granted[0], used), Settled(asked[1], verdict.granted[1], 0)]
        )

    async def granted(self, attempts: int) -> int:
        """Number of requests for one token that are granted."""
        return sum([bool((await self.ask()).granted) for _ in range(attempts)])

    async def back(self) -> None:
        """Wait until limits are shared again."""
        async with asyncio.timeout(20):
            while self.accounts.fault:
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self.accounts.close()
        await self.counters.close()


async def held(worker: Worker) -> int:
    empty = [line._replace(asked=0, limit=None) for line in worker.lines()]
    return (await worker.accounts.reserve(empty)).states[0].held


async def test_share_divides_what_was_left(server: RedisServer) -> None:
    one, two = Worker(server), Worker(server)
    assert await one.granted(10) == 10
    assert await two.granted(10) == 10
    assert await one.granted(1) == 1  # it knows of the other one now
    server.kill()
    # 39 are left: 19 for each. The other one has last heard that 40 are.
    assert (await one.granted(60), await two.granted(60)) == (19, 20)
    assert one.faults == two.faults == ["unavailable"]
    assert "Redis" in one.accounts.fault
    server.start()
    for worker in (one, two):
        await worker.back()
    assert await held(one) == 60
    assert await one.granted(1) == await two.granted(1) == 0
    for worker in (one, two):
        await worker.close()


async def test_local_lets_each_have_what_was_left(server: RedisServer) -> None:
    worker = Worker(server, "local")
    assert await worker.granted(10) == 10
    server.kill()
    assert await worker.granted(100) == 50
    await worker.close()


async def test_refuse_admits_nothing(server: RedisServer) -> None:
    worker = Worker(server, "refuse")
    verdict = await worker.ask()
    server.kill()
    for _ in range(3):
        with pytest.raises(Unavailable, match=r"replicas\.on_failure") as refused:
            await worker.ask()
        assert refused.value.headers["retry-after"] == "1"
    worker.end(verdict, 1)
    server.start()
    await worker.back()
    assert await held(worker) == 0
    await worker.close()


async def test_unknown_tenants_get_a_share_of_the_whole(server: RedisServer) -> None:
    one, two = Worker(server), Worker(server)
    await one.ask()
    await two.ask()
    await one.ask()
    server.kill()
    verdicts = [await one.ask(scope="tenant:new") for _ in range(LIMIT)]
    assert sum(bool(each.granted) for each in verdicts) == LIMIT // 2
    for worker in (one, two):
        await worker.close()


async def test_a_redis_that_comes_back_empty_gets_the_counts_again(server: RedisServer) -> None:
    """Also what was used while it was away, once, and what is held."""
    one, two = Worker(server), Worker(server)
    for worker in (one, two):
        worker.end(await worker.ask(10), 10)
        worker.end(await worker.ask(3), 2)
    kept = await one.ask(7)
    assert await held(two) == 7
    server.kill()
    for worker in (one, two):
        worker.end(await worker.ask(4), 4)
    server.start()
    for worker in (one, two):
        await worker.back()
        await worker.counters.sync()
    empty = [line._replace(asked=0, limit=None) for line in two.lines()]
    state = (await two.accounts.reserve(empty)).states[0]
    assert state == (2 * (10 + 2 + 4), 7)
    one.end(kept, 0)
    assert await held(one) == 0
    for worker in (one, two):
        await worker.close()


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_a_redis_that_was_flushed_admits_no_tenant_again(
    server: RedisServer, *, is_renewed: bool
) -> None:
    """Each of more tenants than are heard of with the lease has used up its limit."""
    worker = Worker(server)
    scopes = [f"tenant:{number}" for number in range(2 * MAX_BATCH)]
    for scope in scopes:
        asked = worker.lines(LIMIT, scope)
        verdict = await worker.accounts.reserve(asked)
        worker.accounts.settle(
            [Settled(asked[0], verdict.granted[0], LIMIT), Settled(asked[1], verdict.granted[1], 0)]
        )
    await worker.counters.sync()
    worker.counters._used.clear()  # none of them has been asked for a while
    with redis.Redis.from_url(server.url) as raw:
        raw.flushall()
    if is_renewed:
        async with worker.accounts._turn:
            await worker.accounts._refresh()
    assert not (await worker.ask(scope=scopes[0])).granted
    assert not (await worker.ask(scope=scopes[-1])).granted
    await worker.close()


async def test_a_slow_redis_costs_one_request_its_timeout_and_the_next_ones_nothing(
    server: RedisServer,
) -> None:
    worker = Worker(server, timeout_s=1.0)
    await worker.ask()
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    assert (await worker.ask()).granted
    assert time.monotonic() - began_s >= 1.0
    began_s = time.monotonic()
    assert await worker.granted(20) == 20
    assert time.monotonic() - began_s < 1.0
    os.kill(server._process.pid, signal.SIGCONT)
    await worker.back()
    assert await held(worker) == 22
    await worker.close()


async def test_a_client_that_leaves_while_it_waits_holds_nothing(server: RedisServer) -> None:
    worker = Worker(server)
    await worker.ask()
    leaving = [asyncio.create_task(worker.ask(5)) for _ in range(8)]
    await asyncio.sleep(0)
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    async with asyncio.timeout(10):
        while await held(worker) != 1:
            await asyncio.sleep(0.01)
    await worker.close()


async def test_closing_frees_all(server: RedisServer) -> None:
    one, two = Worker(server), Worker(server)
    await one.ask(LIMIT)
    assert not (await two.ask()).granted
    await one.close()
    assert (await two.ask()).granted
    await two.close()


async def test_500_at_once_are_asked_in_few_batches(server: RedisServer) -> None:
    worker = Worker(server)
    verdicts = await asyncio.gather(*(worker.ask() for _ in range(500)))
    assert sum(bool(each.granted) for each in verdicts) == LIMIT
    assert worker.faults == []
    await worker.close()


async def test_a_defect_of_the_store_leaves_no_request_waiting(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> Answer:
        raise ValueError("no answer has this shape")

    worker = Worker(server)
    await worker.ask()
    with monkeypatch.context() as patch:
        patch.setattr(worker.accounts._store, "run", broken)
        async with asyncio.timeout(10):
            assert (await worker.ask()).granted
        assert worker.accounts.fault == "ValueError"
    await worker.back()
    assert await held(worker) == 2
    await worker.close()
