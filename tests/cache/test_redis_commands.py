"""Replicas beside values that are not theirs, on a Redis server that is full, read-only or empty again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
import redis

from cache import redis_commands, redis_store
from cache.entry import Selector
from cache.semantic_cache import StoreUnavailable
from tests.cache.entries import entry_of, key_of
from tests.cache.redis_server import RedisServer
from tests.cache.test_redis_store import Replica, replicas

LOG = "test:3:log"
ALICE = Selector("tenant", "alice", "alice")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    yield found
    found.kill()


@pytest.fixture
def raw(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A client of another program, on an empty server."""
    monkeypatch.setattr(redis_store, "RETRY_S", 0.05)
    monkeypatch.setattr(redis_store, "LOOK_UP_LIMIT_S", 1.0)
    client = redis.Redis.from_url(server.url)
    client.flushall()
    yield client
    client.close()


def name_of(number: int) -> bytes:
    return b"test:3:entry:" + key_of(number)


def spoil(raw: redis.Redis) -> int:
    """Put what no gateway writes where entries are, each in another way; how many."""
    raw.set(name_of(100), b"no hash")
    raw.rpush(name_of(101), b"a", b"b")
    raw.hset(name_of(102), mapping={"entry": b"\xff\x00garbage", "vector": b""})
    raw.hset(name_of(103), mapping={"entry": msgspec.msgpack.encode(entry_of(4)), "vector": b""})
    raw.hset(name_of(104), mapping={"entry": msgspec.msgpack.encode(entry_of(104)), "vector": b"abc"})
    raw.hset(name_of(105), mapping={"entry": bytes(redis_commands.MAX_ENTRY_BYTES + 1)})
    raw.hset(name_of(106), mapping={"other": b"field"})  # no entry at all: left alone
    return 6


async def faulty(server: RedisServer) -> tuple[Replica, Counter[str]]:
    """A replica that counts its faults, not started."""
    faults: Counter[str] = Counter()
    replica = Replica(server)
    replica.store = redis_store.RedisStore(
        server.url, "test", replica.memory, time.time, lambda kind: faults.update([kind])
    )
    return replica, faults


async def test_a_new_replica_passes_over_what_it_cannot_read(server: RedisServer, raw: redis.Redis) -> None:
    async with replicas(server, 1) as (one,):
        one.put(1)
        while one.store._pending:
            await asyncio.sleep(0.001)
    raw.set(b"test:3:entry:foreign", b"of another program")
    num_spoiled = spoil(raw)
    late, faults = await faulty(server)
    await late.store.start()
    await late.until(1)
    await late.store.close()
    assert faults == {"entry_skipped": num_spoiled}
    assert not any(raw.exists(name_of(number)) for number in range(100, 106))
    assert raw.get(b"test:3:entry:foreign") == b"of another program"


async def test_forgetting_and_look_ups_pass_over_it_too(server: RedisServer, raw: redis.Redis) -> None:
    one, faults = await faulty(server)
    await one.store.start()
    one.put(1)
    one.put(2)
    while one.store._pending or one.store._last is None:  # else its first load may count them as well
        await asyncio.sleep(0.001)
    num_spoiled = spoil(raw)
    assert await one.store.get(key_of(100)) is None
    assert await one.store.forget(Selector("entry", key_of(101).hex(), "alice")) == 0
    assert await one.store.forget(Selector("entry", "ff", "alice")) == 0
    assert await one.store.forget(ALICE) == 2
    await one.store.close()
    assert faults == {"entry_skipped": num_spoiled}


async def test_a_change_that_cannot_be_read_is_passed_over(server: RedisServer, raw: redis.Redis) -> None:
    async with replicas(server, 1) as (one,):
        other, faults = await faulty(server)
        await other.store.start()
        one.put(1)
        await other.until(1)
        raw.xadd(LOG, {"change": b"\xff garbage"})
        raw.xadd(LOG, {"something": b"else"})
        one.memory.forget(ALICE, time.time())
        await one.store.forget(ALICE)
        await other.until(1, is_there=False)  # the invalidation after them arrives
        raw.delete(LOG)
        raw.set(LOG, b"no stream")
        one.put(2)
        await other.until(2)
        await other.store.close()
    assert faults["change_skipped"] >= 2 and not faults["restarted"]


async def test_a_value_of_another_type_does_not_stop_the_writer(
    server: RedisServer, raw: redis.Redis
) -> None:
    raw.set(name_of(1), b"no hash")
    raw.set(LOG, b"no stream")
    async with replicas(server, 2) as (one, other):
        one.put(1)
        one.put(2)
        await other.until(1)
        await other.until(2)


async def test_an_entry_of_another_encoder_is_passed_over(server: RedisServer, raw: redis.Redis) -> None:
    async with replicas(server, 1) as (one,):
        one.put(1)
        while one.store._pending:
            await asyncio.sleep(0.001)
        entry = msgspec.msgpack.encode(entry_of(9, created_s=time.time()))
        raw.hset(name_of(9), mapping={"entry": entry, "vector": bytes.fromhex("003c")})  # (1.0,)
        assert await one.store.get(key_of(9)) is None
        assert one.has(1) and not one.has(9)


async def test_what_was_forgotten_while_a_replica_was_away_is_gone(
    server: RedisServer, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(server) as (one, other):
        one.put(1)
        one.put(2, tenant="bob")
        await other.until(1)
        await other.until(2)
        monkeypatch.setattr(redis_store, "RETRY_S", 0.2)
        raw.client_kill_filter(_type="normal", skipme=True)  # both lose their connections
        for _ in range(20):  # its own connections are gone too
            try:
                await one.store.forget(ALICE)
                break
            except StoreUnavailable:
                continue
        await other.until(1, is_there=False)
        assert other.has(2)


async def test_what_redis_has_lost_a_replica_drops(server: RedisServer, raw: redis.Redis) -> None:
    async with replicas(server) as (one, other):
        one.put(1)
        await other.until(1)
        server.kill()
        server.start()  # empty: what was forgotten meanwhile is not known
        await other.until(1, is_there=False)
        one.put(2)
        await other.until(2)


async def test_a_full_server_still_forgets(
    server: RedisServer, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with replicas(server) as (one, other):
        one.put(1)
        await other.until(1)
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", "1mb")
        try:
            one.put(2)
            async with asyncio.timeout(10):
                while "no memory left" not in caplog.text:
                    await asyncio.sleep(0.01)
            with pytest.raises(StoreUnavailable, match="no memory left"):
                await one.store.forget(ALICE)
            assert not raw.exists(name_of(1))  # it is not in Redis any more
        finally:
            raw.config_set("maxmemory", "0")
        assert await one.store.forget(ALICE) == 0
        await other.until(1, is_there=False)
        async with asyncio.timeout(10):
            while "Redis answers again" not in caplog.text:
                await asyncio.sleep(0.01)


async def test_a_read_only_replica_is_read_and_named(
    server: RedisServer, raw: redis.Redis, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with replicas(server, 1) as (one,):
        one.put(1)
        while one.store._pending:
            await asyncio.sleep(0.001)
        spoil(raw)
        raw.config_set("repl-diskless-sync-delay", "0")
        copy = RedisServer(tmp_path_factory.mktemp("copy"), "--replicaof", "127.0.0.1", str(server.port))
        try:
            reader, faults = await faulty(copy)
            await reader.store.start()
            await reader.until(1)
            with pytest.raises(StoreUnavailable, match="read-only replica"):
                await reader.store.forget(ALICE)
            await reader.store.close()
        finally:
            copy.kill()
    assert not faults["restarted"]
