"""Two replicas and a real Redis server, which is killed, stopped and emptied."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis
from numpy import float16

from cache import redis_commands, redis_store
from cache.entry import Labels, Selector
from cache.evidence import Verdict
from cache.memory_store import MemoryStore
from cache.redis_store import RedisStore
from cache.semantic_cache import StoreUnavailable
from tests.cache.entries import entry_of, key_of, unit
from tests.cache.redis_server import RedisServer

LIMIT_S = 0.5
"""Longer than the store's own, so that no pause of a busy machine looks like waiting for Redis."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    yield found
    found.kill()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, server: RedisServer) -> None:
    for name in ("RETRY_S", "BREAKER_OPEN_S"):
        monkeypatch.setattr(redis_store, name, 0.05)
    monkeypatch.setattr(redis_store, "SOCKET_TIMEOUT_S", 1.2)
    monkeypatch.setattr(redis_store, "LOOK_UP_LIMIT_S", 1.0)  # only some tests are about time
    redis.Redis.from_url(server.url).flushall()


class Replica:
    """A store and its memory."""

    def __init__(self, server: RedisServer, prefix: str = "test") -> None:
        self.memory = MemoryStore(1 << 24, 1 << 24)
        self.store = RedisStore(server.url, prefix, self.memory, time.time)

    def put(self, number: int, tenant: str = "alice", ttl_s: float = 60.0) -> None:
        entry = entry_of(number, tenant=tenant, created_s=time.time(), ttl_s=ttl_s)
        entry.labels = Labels("small", "", ("even",) if number % 2 == 0 else ())
        vector = unit(number).astype(float16)
        self.memory.add(entry, vector)
        self.store.put(entry, vector)

    def has(self, number: int) -> bool:
        return self.memory.get(key_of(number), time.time()) is not None

    async def until(self, number: int, *, is_there: bool = True) -> None:
        async with asyncio.timeout(20):
            while self.has(number) != is_there:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def replicas(
    server: RedisServer, count: int = 2, *, follow: bool = True, prefix: str = "test"
) -> AsyncIterator[list[Replica]]:
    """`follow`: False for replicas that only look up."""
    found = [Replica(server, prefix) for _ in range(count)]
    for each in found if follow else ():
        await each.store.start()
    try:
        yield found
    finally:
        for each in found:
            await each.store.close()


async def test_what_one_replica_stores_the_other_finds_by_meaning(server: RedisServer) -> None:
    async with replicas(server) as (one, other):
        one.put(1)
        await other.until(1)
        ((entry, neighbour),) = other.memory.nearest(b"p", unit(1), 5, time.time())
        assert entry.answer == bytes(100) and entry.labels.model == "small" and neighbour.cosine > 0.99


async def test_a_new_replica_loads_what_is_there(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_commands, "PAGE", 7)
    async with replicas(server, 1) as (one,):
        for number in range(50):
            one.put(number)
        async with replicas(server, 1) as (late,):
            for number in range(50):
                await late.until(number)


async def test_an_exact_look_up_asks_redis(server: RedisServer) -> None:
    async with replicas(server, 1) as (one,):
        one.put(1)
        one.put(2, ttl_s=-1.0)
        while one.store._pending:
            await asyncio.sleep(0.001)
        async with replicas(server, 1, follow=False) as (other,):
            found = await other.store.get(key_of(1))
            assert found is not None and found.answer == bytes(100) and other.has(1)
            assert await other.store.get(key_of(2)) is None  # it has expired
            assert await other.store.get(key_of(3)) is None
        async with replicas(server, 1, follow=False, prefix="another") as (stranger,):
            assert await stranger.store.get(key_of(1)) is None


async def test_forgetting_reaches_redis_and_every_replica(server: RedisServer) -> None:
    async with replicas(server) as (one, other):
        for number in range(4):
            one.put(number, tenant="alice" if number < 3 else "bob")
        for number in range(4):
            await other.until(number)
        selector = Selector("tag", "even", "alice")
        assert one.memory.forget(selector, time.time()) == 2
        assert await one.store.forget(selector) == 2
        for number in (0, 2):
            await other.until(number, is_there=False)
            assert await other.store.get(key_of(number)) is None
        assert other.has(1) and other.has(3)


async def test_what_another_replica_forgets_under_way_is_not_stored(server: RedisServer) -> None:
    async with replicas(server) as (one, other):
        one.put(1)
        await other.until(1)  # it follows
        asked_s = time.time()
        late = entry_of(7, created_s=asked_s, ttl_s=60.0)
        await one.store.forget(Selector("tenant", "alice", "alice"))
        async with asyncio.timeout(20):
            while not other.memory.was_forgotten(late, asked_s):
                await asyncio.sleep(0.005)
        assert not other.memory.was_forgotten(late, time.time() + 1)


async def test_replicas_share_verdicts(server: RedisServer) -> None:
    async with replicas(server) as (one, other):
        one.put(1)
        await other.until(1)
        entry = one.memory.get(key_of(1), time.time())
        assert entry is not None
        entry.right = 1
        one.store.update(entry, Verdict("small", 0.01, True, "a"))
        async with asyncio.timeout(20):
            while not other.memory.evidence.section("small").verdicts or not (
                (found := other.memory.get(key_of(1), time.time())) and found.right
            ):
                await asyncio.sleep(0.005)
        assert found.right == 1
        assert not one.memory.evidence.section("small").verdicts  # its own it has already


async def test_a_killed_server_costs_nothing_and_loses_nothing(
    server: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "LOOK_UP_LIMIT_S", LIMIT_S)
    caplog.set_level(logging.WARNING)
    async with replicas(server) as (one, other):
        one.put(1)
        await other.until(1)
        server.kill()
        times_s = []
        for number in range(2, 60):
            started_s = time.perf_counter()
            assert await one.store.get(key_of(1000 + number)) is None
            times_s.append(time.perf_counter() - started_s)
            one.put(number)
        assert sorted(times_s)[-5] < LIMIT_S / 2
        with pytest.raises(StoreUnavailable):
            await one.store.forget(Selector("tenant", "nobody", None))
        server.start()
        for number in range(2, 60):
            await other.until(number)
        assert one.store.num_dropped == 0
        async with asyncio.timeout(20):
            while await one.store.get(key_of(59)) is None:
                await asyncio.sleep(0.01)
    assert "does not answer" in caplog.text and "answers again" in caplog.text
    assert server.url not in caplog.text


async def test_a_slow_server_is_waited_for_once(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "LOOK_UP_LIMIT_S", LIMIT_S)
    async with replicas(server, 1) as (one,):
        one.put(1)
        while one.store._pending:
            await asyncio.sleep(0.001)
        server.pause()
        try:
            times_s = []
            for _ in range(100):
                started_s = time.perf_counter()
                assert await one.store.get(key_of(1)) is None
                times_s.append(time.perf_counter() - started_s)
        finally:
            server.resume()
        assert sorted(times_s)[50] < LIMIT_S / 2  # the breaker is open
        assert sorted(times_s)[-2] < LIMIT_S / 2
        async with asyncio.timeout(20):
            while (found := await one.store.get(key_of(1))) is None:
                await asyncio.sleep(0.01)
        assert found.key == key_of(1)  # and not the answer to a question that was given up
        second = await one.store.get(key_of(2))
        assert second is None


async def test_the_oldest_pending_entries_are_dropped(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_PENDING", 3)
    async with replicas(server, 1, follow=False) as (one,):
        for number in range(5):
            one.put(number)
        assert one.store.num_dropped == 2
    # It writes the rest when it is closed.
    async with replicas(server, 1, follow=False) as (other,):
        found = [await other.store.get(key_of(number)) is not None for number in range(5)]
    assert found == [False, False, True, True, True]


async def test_a_replica_that_missed_changes_loads_everything_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_commands, "MAX_LOG_LENGTH", 20)
    monkeypatch.setattr(redis_commands, "PAGE", 5)
    async with replicas(server) as (one, other):
        one.put(0)
        await other.until(0)
        for number in range(1, 120):
            one.put(number)
        for number in range(120):
            await other.until(number)
