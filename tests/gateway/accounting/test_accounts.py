"""The three kinds of accounts follow one model, for any order of requests of several workers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.accounting.accounts import Accounts, MemoryAccounts, Settled
from gateway.accounting.counters import Counters
from gateway.accounting.holds import SCHEMA, DatabaseHolds, RedisHolds
from gateway.accounting.lines import Line
from gateway.accounting.shared_accounts import SharedAccounts
from gateway.accounting.stores import SCHEMA as COUNTERS_SCHEMA
from gateway.accounting.stores import DatabaseCounters, RedisCounters
from gateway.database.sqlite import SqliteDatabase
from tests.cache.redis_server import RedisServer

NOW_S = time.time() // 60 * 60 + 20.0
LIMIT = 50
TIMEOUT_S = 10.0  # of Redis on a loaded machine
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),  # which worker
        st.sampled_from(["t", "u"]),
        st.integers(1, 20),  # the highest cost
        st.integers(0, 20),  # the real one
        st.booleans(),  # bounded
        st.integers(0, 3),  # how many others end before
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    yield found
    found.kill()


def clock() -> float:
    return NOW_S


def lines(tenant: str, tokens: int, *, is_bounded: bool = True) -> list[Line]:
    scope = f"tenant:{tenant}"
    return [
        Line("requests_per_minute", scope, LIMIT, None, 1),
        Line("concurrent_requests", scope, 5, None, 1),
        Line("tokens_per_day", scope, LIMIT, None, tokens, is_bounded),
        Line("usd_per_month", scope, None, 3, tokens),
    ]


class World:
    """Two workers with one store, in a place of their own."""

    def __init__(self, kind: str, place: str, server: RedisServer) -> None:
        self.workers: list[Accounts] = []
        self.counters: list[Counters] = []
        if kind == "memory":
            self.counters = [Counters(now_s=clock)]
            self.workers = [MemoryAccounts(self.counters[0])] * 2
            return
        for _ in range(2):
            if kind == "redis":
                counters = Counters(RedisCounters(server.url, place), clock)
                self.workers.append(SharedAccounts(RedisHolds(server.url, place, TIMEOUT_S), counters))
            else:
                database = SqliteDatabase(place, "counters", COUNTERS_SCHEMA + SCHEMA)
                counters = Counters(DatabaseCounters(database), clock)
                self.workers.append(SharedAccounts(DatabaseHolds(database), counters))
            self.counters.append(counters)

    async def close(self) -> None:
        for each in self.workers:
            await each.close()
        for counters in self.counters:
            await counters.close()


async def follow(world: World, steps: list[tuple[int, str, int, int, bool, int]]) -> None:
    """Compare each verdict with what plain sums say."""
    used, held, running, asked = (dict.fromkeys("tu", 0) for _ in range(4))
    open_ones: list[tuple[int, str, list[Line], Sequence[int], int]] = []
    for worker, tenant, highest, real, is_bounded, num_ending in steps:
        for ended_by, whose, its_lines, granted, cost in open_ones[:num_ending]:
            world.workers[ended_by].settle(
                [Settled(*each) for each in zip(its_lines[1:], granted[1:], [0, cost, cost], strict=True)]
            )
            used[whose] += cost
            held[whose] -= granted[2]
            running[whose] -= 1
        del open_ones[:num_ending]
        await settle_all(world)
        asked_lines = lines(tenant, highest, is_bounded=is_bounded)
        verdict = await world.workers[worker].reserve(asked_lines)
        left = LIMIT - used[tenant]
        fits = highest <= left - held[tenant]
        open_end = not is_bounded and not held[tenant] and left > 0
        may = asked[tenant] < LIMIT and running[tenant] < 5 and (fits or open_end)
        assert bool(verdict.granted) == may
        assert verdict.states[2] == (used[tenant], held[tenant])
        if not may:
            assert verdict.refused >= 0
            continue
        granted = verdict.granted[2]
        assert granted == (highest if fits else left)
        asked[tenant] += 1
        running[tenant] += 1
        held[tenant] += granted
        open_ones.append((worker, tenant, asked_lines, verdict.granted, min(real, granted)))
    for ended_by, _, its_lines, granted, _ in open_ones:
        world.workers[ended_by].settle(
            [Settled(line, n, 0) for line, n in zip(its_lines[1:], granted[1:], strict=True)]
        )
    await settle_all(world)
    for tenant in "tu":
        empty = [line._replace(asked=0, limit=None) for line in lines(tenant, 0)]
        verdict = await world.workers[0].reserve(empty)
        assert [state.held for state in verdict.states] == [0, 0, 0, 0]


async def settle_all(world: World) -> None:
    for each in world.workers:
        if isinstance(each, SharedAccounts):
            while each._working is not None:
                await asyncio.shield(each._working)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_verdicts_are_those_of_plain_sums(
    kind: str, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    numbers = itertools.count()

    @settings(max_examples=25, deadline=None)
    @given(STEPS)
    def check(steps: list[tuple[int, str, int, int, bool, int]]) -> None:
        place = str(tmp_path_factory.mktemp("place")) if kind == "sqlite" else f"p{next(numbers)}"

        async def run() -> None:
            world = World(kind, place, redis_server)
            try:
                await follow(world, steps)
            finally:
                await world.close()

        asyncio.run(run())

    check()
