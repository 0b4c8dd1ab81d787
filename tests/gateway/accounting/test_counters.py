"""Sums in windows of time, alone and shared through SQLite and a real Redis server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import pytest
import redis

from backend import kept_running
from gateway.accounting import counters as counters_module
from gateway.accounting.counters import DAY_S, MINUTE_S, Counters, CounterStore
from gateway.accounting.stores import SCHEMA, DatabaseCounters, RedisCounters
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import Unavailable
from tests.cache.redis_server import RedisServer


class Clock:
    def __init__(self, now_s: float = 1_000_000_020.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    yield found
    found.kill()


@pytest.fixture(params=["sqlite", "redis"])
def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> Callable[[], CounterStore]:
    """Each call opens another connection to the same counters."""

    def connect() -> CounterStore:
        if request.param == "redis":
            return RedisCounters(redis_server.url, tmp_path.name)
        return DatabaseCounters(SqliteDatabase(str(tmp_path), "counters", SCHEMA))

    return connect


def test_a_window_ends() -> None:
    clock = Clock()
    counters = Counters(now_s=clock)
    counters.add("usd", 2.5, DAY_S)
    counters.add("usd", 1.0, DAY_S)
    assert counters.total("usd", DAY_S) == 3.5 and counters.total("other", DAY_S) == 0.0
    clock.now_s += DAY_S
    assert counters.total("usd", DAY_S) == 0.0 and counters.total("usd", DAY_S, 2) == 3.5


def test_the_last_minute_slides() -> None:
    clock = Clock(60 * 1000.0)
    counters = Counters(now_s=clock)
    counters.add("n", 10, MINUTE_S)
    clock.now_s += 75  # a quarter of the next window is past
    counters.add("n", 1, MINUTE_S)
    assert counters.recent("n", MINUTE_S) == pytest.approx(8.5)


async def test_what_has_expired_is_forgotten() -> None:
    clock = Clock()
    counters = Counters(now_s=clock)
    counters.add("n", 1, MINUTE_S)
    clock.now_s += 3600
    await counters.sync()
    assert not counters._sums


async def never(counters: Counters) -> None:
    """In place of the task that synchronises once a second."""
    await asyncio.Event().wait()


async def test_workers_share_their_sums(
    open_store: Callable[[], CounterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counters, "_keep_in_sync", never)
    clock = Clock(4_000_000_000.0)  # Redis would expire the past
    first, second = Counters(open_store(), clock), Counters(open_store(), clock)
    assert first.total("usd", DAY_S) == second.total("usd", DAY_S) == 0.0
    first.add("usd", 1.5, DAY_S)
    second.add("usd", 2.0, DAY_S)
    await first.sync()
    await second.sync()
    assert second.total("usd", DAY_S) == pytest.approx(3.5)
    assert first.total("usd", DAY_S) == pytest.approx(1.5)
    await first.sync()
    assert first.total("usd", DAY_S) == pytest.approx(3.5)
    await first.close()
    await second.close()


async def test_a_restart_finds_what_was_added(open_store: Callable[[], CounterStore]) -> None:
    clock = Clock(4_000_000_000.0)
    first = Counters(open_store(), clock)
    first.add("usd", 1.5, DAY_S)
    await first.close()
    again = Counters(open_store(), clock)
    again.total("usd", DAY_S)
    await again.sync()
    assert again.total("usd", DAY_S) == 1.5
    await again.close()


class Failing:
    """Fails until it is told not to; what is added during an exchange is added to a copy."""

    def __init__(self) -> None:
        self.is_down = True
        self.sums: dict[str, float] = {}

    async def exchange(
        self,
        added: Mapping[str, tuple[float, int]],
        wanted: Collection[str],
        known: object = None,
        batch: str = "",
    ) -> Mapping[str, float]:
        if self.is_down:
            raise Unavailable("gone")
        for name, (amount, _) in added.items():
            self.sums[name] = self.sums.get(name, 0.0) + amount
        return {name: self.sums[name] for name in wanted if name in self.sums}

    async def close(self) -> None:
        pass


async def test_nothing_is_lost_or_counted_twice_while_the_store_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Failing()
    counters = Counters(store)
    counters.add("n", 1, DAY_S)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await counters.sync()
    assert caplog.text.count("counts are not shared: gone") == 1
    counters.add("n", 1, DAY_S)
    assert counters.total("n", DAY_S) == 2
    store.is_down = False
    await counters.sync()
    assert counters.total("n", DAY_S) == 2 and list(store.sums.values()) == [2]
    await counters.close()


async def test_redis_that_is_away_is_unavailable(unused_tcp_port_factory: Callable[[], int]) -> None:
    store = RedisCounters(f"redis://:secret@127.0.0.1:{unused_tcp_port_factory()}/0", "p")
    with pytest.raises(Unavailable, match="it does not answer") as caught:
        await store.exchange({"n": (1.0, 5_000_000_000)}, ["n"])
    assert "secret" not in str(caught.value)
    await store.close()


async def test_a_name_is_claimed_once_by_all_workers(open_store: Callable[[], CounterStore]) -> None:
    workers = [Counters(open_store()) for _ in range(3)]
    claims = await asyncio.gather(*(each.claim("name", 60) for each in workers for _ in range(4)))
    assert claims.count(True) == 1
    assert await workers[0].claim("other", 60)
    for worker in workers:
        await worker.close()


async def test_a_worker_alone_claims_for_itself() -> None:
    class Away:
        async def exchange(
            self,
            added: Mapping[str, tuple[float, int]],
            wanted: Collection[str],
            known: object = None,
            batch: str = "",
        ) -> Mapping[str, float]:
            raise Unavailable("away")

        async def close(self) -> None: ...

    for counters in (Counters(), Counters(Away())):
        assert [await counters.claim("name", 60) for _ in range(2)] == [True, False]


async def test_values_that_are_no_counters_are_replaced(redis_server: RedisServer, tmp_path: Path) -> None:
    faults: list[str] = []
    store = RedisCounters(redis_server.url, tmp_path.name, faults.append)
    raw = redis.Redis.from_url(redis_server.url)
    expiry = 5_000_000_000
    spoiled: dict[str, Callable[[str], object]] = {
        "text": lambda name: raw.set(name, "many"),
        "list": lambda name: raw.rpush(name, "1"),
        "nan": lambda name: raw.set(name, "nan"),
        "huge": lambda name: raw.set(name, b"9" * 1_000_000),
        "negative": lambda name: raw.set(name, "-5"),
    }
    for name, spoil in spoiled.items():
        spoil(f"{tmp_path.name}:count:{name}")
    raw.set(f"{tmp_path.name}:count:good", "2")
    found = await store.exchange(
        {"text": (1.5, expiry), "list": (2.5, expiry), "good": (1.0, expiry)}, ["good"]
    )
    assert found == {"good": 3.0} and faults == ["value_skipped"] * 2
    names = [*spoiled, "good", "none"]
    assert await store.exchange({}, names) == {"text": 1.5, "list": 2.5, "good": 3.0}
    assert faults == ["value_skipped"] * 5
    assert await store.exchange({name: (1.0, expiry) for name in names}, names) == {
        **dict.fromkeys(("nan", "huge", "negative", "none"), 1.0),
        **{"text": 2.5, "list": 3.5, "good": 4.0},
    }
    assert raw.ttl(f"{tmp_path.name}:count:text") > 0 and len(faults) == 5
    await store.close()
    raw.close()


async def test_sharing_begins_again_after_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters_module, "SYNC_S", 0.001)
    monkeypatch.setattr(kept_running, "FIRST_WAIT_S", 0.001)
    store, faults = Failing(), list[str]()
    store.is_down = False
    exchange, broken = store.exchange, [True, True]

    async def defect(
        added: Mapping[str, tuple[float, int]], wanted: Collection[str], known: object = None, batch: str = ""
    ) -> Mapping[str, float]:
        if broken:
            broken.pop()
            raise ValueError("no number")
        return await exchange(added, wanted)

    monkeypatch.setattr(store, "exchange", defect)
    counters = Counters(store, on_fault=faults.append)
    counters.add("n", 3, DAY_S)
    async with asyncio.timeout(10):
        while list(store.sums.values()) != [3]:
            await asyncio.sleep(0.001)
    assert faults == ["restarted", "restarted"]
    await counters.close()


async def test_what_waits_for_the_store_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counters, "_keep_in_sync", never)
    clock = Clock()
    counters = Counters(Failing(), clock)
    counters.add("n", 1, MINUTE_S)
    await counters.sync()
    clock.now_s += 3600
    counters.add("n", 1, MINUTE_S)
    await counters.sync()
    assert len(counters._added) == 1
    await counters.close()


class Slow(Failing):
    """Answers once it may; what it was told before counts once."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def exchange(
        self,
        added: Mapping[str, tuple[float, int]],
        wanted: Collection[str],
        known: object = None,
        batch: str = "",
    ) -> Mapping[str, float]:
        self.asked.set()
        await self.may_answer.wait()
        return await super().exchange(added, wanted)


async def test_what_is_being_told_when_no_request_waits_any_more_counts_once() -> None:
    store = Slow()
    counters = Counters(store)
    counters.add("n", 1, DAY_S)
    (key,) = counters._sums
    waiting = asyncio.create_task(counters.sync())
    await store.asked.wait()
    assert counters.untold(key) == 1  # a share is not given out again while the store is asked
    waiting.cancel()
    await asyncio.wait([waiting])
    counters.add("n", 2, DAY_S)
    store.may_answer.set()
    await counters.close()
    assert store.sums == {key: 3}


async def test_what_redis_has_had_late_is_added_once(redis_server: RedisServer, tmp_path: Path) -> None:
    store = RedisCounters(redis_server.url, tmp_path.name)
    added = {"n": (2.0, 5_000_000_000)}
    for _ in range(3):
        assert await store.exchange(added, ["n"], {"n": 0.0}, "a batch") == {"n": 2.0}
    assert await store.exchange(added, ["n"], {"n": 2.0}, "another") == {"n": 4.0}
    await store.close()


async def test_as_many_counters_as_there_are_users_are_told(
    open_store: Callable[[], CounterStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By parts: SQLite refuses more than 32,766 parameters, and a long script of Redis holds others up."""
    monkeypatch.setattr(Counters, "_keep_in_sync", never)
    clock, store, sizes = Clock(4_000_000_000.0), open_store(), list[int]()
    exchange = store.exchange

    async def measured(
        added: Mapping[str, tuple[float, int]],
        wanted: Collection[str],
        known: Mapping[str, float],
        batch: str,
    ) -> Mapping[str, float]:
        sizes.append(len(wanted))
        return await exchange(added, wanted, known, batch)

    monkeypatch.setattr(store, "exchange", measured)
    first, second = Counters(store, clock), Counters(open_store(), clock)
    names = [f"requests_per_day:user:t:{number}" for number in range(2500)]
    for name in names:
        first.add(name, 1, DAY_S)
    await first.sync()
    assert sizes == [1000, 1000, 500]
    assert [second.total(name, DAY_S) for name in names] == [0] * 2500
    await second.sync()
    assert [second.total(name, DAY_S) for name in names] == [1] * 2500
    await first.close()
    await second.close()


async def test_limits_of_users_are_forgotten_soon_and_without_a_search() -> None:
    clock = Clock()
    counters = Counters(now_s=clock)
    for number in range(1000):
        counters.add(f"requests_per_day:user:t:{number}", 1, DAY_S)
    counters.add("usd:tenant:t", 1, DAY_S)
    clock.now_s += 3 * DAY_S
    await counters.sync()
    assert len(counters._sums) == 1 and counters.total("usd:tenant:t", DAY_S, 4) == 1
    assert len(counters._expiring) == 1 + 3  # what has been read just now


async def test_without_a_store_what_has_expired_is_forgotten_too() -> None:
    clock = Clock()
    counters = Counters(now_s=clock)
    for _ in range(1000):
        counters.add("requests_per_minute:tenant:t", 1, MINUTE_S)
        assert counters.recent("requests_per_minute:tenant:t", MINUTE_S) >= 1
        clock.now_s += MINUTE_S
    sizes = [len(each) for each in (counters._sums, counters._added, counters._used, counters._expiring)]
    assert max(sizes) < 10
