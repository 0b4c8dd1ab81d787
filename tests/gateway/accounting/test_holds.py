"""A worker's lease: what a killed one held is free when it ends, in SQLite and in a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.accounting import holds
from gateway.accounting.counters import Counters
from gateway.accounting.holds import SCHEMA, DatabaseHolds, HoldStore, Part, RedisHolds
from gateway.accounting.lines import Line
from gateway.accounting.stores import SCHEMA as COUNTERS_SCHEMA
from gateway.database.sqlite import SqliteDatabase
from tests.cache.redis_server import RedisServer

LINE = Line("concurrent_requests", "tenant:t", 5, None, 5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    yield found
    found.kill()


@pytest.fixture(params=["sqlite", "redis"])
def open_store(
    request: pytest.FixtureRequest, tmp_path: Path, server: RedisServer
) -> Callable[[], HoldStore]:
    """Each call opens another connection to the same place."""

    def connect() -> HoldStore:
        if request.param == "redis":
            return RedisHolds(server.url, tmp_path.name)
        return DatabaseHolds(SqliteDatabase(str(tmp_path), "counters", COUNTERS_SCHEMA + SCHEMA))

    return connect


def part(asked: int = 5) -> Part:
    return Part.of(LINE, Counters(), asked)


async def test_nothing_is_done_without_a_lease(open_store: Callable[[], HoldStore]) -> None:
    store = open_store()
    assert not (await store.run("a", [[part()]], [])).has_lease
    await store.register("a", {})
    answer = await store.run("a", [[part()]], [])
    assert answer.has_lease and answer.num_owners == 1
    assert list(answer.verdicts[0].granted) == [5]
    await store.leave("a")


async def test_what_a_killed_worker_held_is_free_when_its_lease_ends(
    open_store: Callable[[], HoldStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    monkeypatch.setattr(holds, "LEASE_S", 0.3)
    await store.register("killed", {LINE.name: 5})
    monkeypatch.setattr(holds, "LEASE_S", 60.0)
    await store.register("other", {})
    first = (await store.run("other", [[part(1)]], [])).verdicts[0]
    async with asyncio.timeout(10):
        while not (verdict := (await store.run("other", [[part(1)]], [])).verdicts[0]).granted:
            await asyncio.sleep(0.02)
    assert (first.refused, first.states[0].held, verdict.states[0].held) == (0, 5, 0)
    await store.leave("other")


async def test_registering_says_exactly_what_is_held(open_store: Callable[[], HoldStore]) -> None:
    store = open_store()
    await store.register("a", {LINE.name: 3})
    await store.register("a", {LINE.name: 2})
    answer = await store.run("a", [[part(4)], [part(3)]], [])
    assert [list(each.granted) for each in answer.verdicts] == [[], [3]]
    await store.run("a", [], [part(5)])
    assert (await store.run("a", [[part()]], [])).verdicts[0].states[0].held == 0
    await store.leave("a")
    assert not (await store.run("a", [[part()]], [])).has_lease
    await store.leave("a")
