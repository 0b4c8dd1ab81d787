"""Sums of rows equal the rows, whatever was written twice; percentiles are near those of the times."""

from __future__ import annotations

import random
import sqlite3
import statistics
from bisect import bisect_left
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from gateway.accounting import usage_sums
from gateway.accounting.counters import DAY_S
from gateway.accounting.usage_rows import SCHEMA, UsageRows
from gateway.accounting.usage_sums import BOUNDS_S, ERRORS, HITS, LEVELS, percentile_s, period_of
from gateway.database.sqlite import SqliteDatabase
from gateway.response_cache.use import HITS as CACHE_HITS
from gateway.response_cache.use import Outcome
from gateway.telemetry.instruments import CALL_ERRORS
from policies.usage import UsageSection
from tests.gateway.accounting.receipts import NOW_S, receipt_with


def open_rows(folder: Path, now_s: float = NOW_S) -> UsageRows:
    return UsageRows(SqliteDatabase(str(folder), "usage", SCHEMA), now_s=lambda: now_s)


async def read(folder: Path, what: str, level: str = "day") -> list[tuple[object, ...]]:
    rows = open_rows(folder)
    query = f"SELECT {what} FROM {usage_sums.TABLE} WHERE level = ?"
    found: list[tuple[object, ...]] = await rows.read(
        lambda connection: connection.execute(query, [level]).fetchall(), ""
    )
    await rows.close()
    return found


async def test_every_level_adds_up_to_the_rows(tmp_path: Path) -> None:
    draw = random.Random(7)
    receipts = [
        receipt_with(
            tenant=draw.choice("abc"),
            model=draw.choice(["m", "n"]),
            ended_s=NOW_S - draw.random() * 3000,
            input_tokens=draw.randrange(100),
            cost_usd=draw.randrange(8) / 4,
            cache=draw.choice(["", "exact", "miss"]),
            error_type=draw.choice(["", "", "RateLimited", "SomethingNew"]),
        )
        for _ in range(300)
    ]
    rows = open_rows(tmp_path)
    for receipt in receipts:
        rows.receive(receipt)
    await rows.close()
    errors = Counter(receipt.error_type for receipt in receipts)
    expected = (
        300,
        sum(receipt.input_tokens for receipt in receipts),
        sum(receipt.cost_usd for receipt in receipts),
        sum(receipt.cache == "exact" for receipt in receipts),
        errors["RateLimited"],
        errors["SomethingNew"],
    )
    sums = ("requests", "input_tokens", "cost_usd", "cache_hits", "error_RateLimited", "error_other")
    what = ", ".join(f"SUM({name})" for name in sums)
    for level in LEVELS:
        assert await read(tmp_path, what, level) == [expected]
        assert await read(tmp_path, "MIN(LENGTH(period)), MAX(LENGTH(period))", level) == [
            (LEVELS[level], LEVELS[level])
        ]


async def test_a_batch_that_is_written_again_counts_once(tmp_path: Path) -> None:
    rows = open_rows(tmp_path)
    batch = [(1, receipt_with()), (2, receipt_with(tenant="b"))]
    more = [*batch, (3, receipt_with())]
    for each in (batch, more, more):
        await rows._database.write(lambda connection, each=each: rows._insert(each, connection))
    await rows.close()
    assert sorted(await read(tmp_path, "tenant, requests")) == [("a", 2.0), ("b", 1.0)]


async def test_each_level_is_kept_for_its_time(tmp_path: Path) -> None:
    rows = open_rows(tmp_path)
    rows.policy = UsageSection(keep_days=10)
    for days in (0.0, 0.5, 3.0, 9.0, 12.0):
        rows.receive(receipt_with(ended_s=NOW_S - days * DAY_S))
    await rows.close()
    counts = {level: len(await read(tmp_path, "period", level)) for level in LEVELS}
    assert counts == {"minute": 1, "hour": 2, "day": 4}


def test_periods_begin_rows_hours() -> None:
    assert [period_of(level, NOW_S) for level in LEVELS] == [
        "2026-11-25T09:46",
        "2026-11-25T09",
        "2026-11-25",
    ]


def test_names_are_those_of_other_parts() -> None:
    assert set(HITS) == CACHE_HITS and set(HITS) <= set(get_args(Outcome))
    assert ERRORS == CALL_ERRORS


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentiles_are_within_a_bucket(share: float) -> None:
    draw = random.Random(3)
    times = sorted(draw.lognormvariate(-1, 1) for _ in range(2000))
    counts = [0.0] * (len(BOUNDS_S) + 1)
    for time_s in times:
        counts[bisect_left(BOUNDS_S, time_s)] += 1
    found = percentile_s(counts, share)
    exact = statistics.quantiles(times, n=100)[round(share * 100) - 1]
    assert found is not None and exact / 1.3 < found < exact * 1.3


def test_percentiles_at_the_edges() -> None:
    nothing = [0.0] * (len(BOUNDS_S) + 1)
    assert percentile_s(nothing, 0.5) is None
    assert percentile_s([*nothing[:-1], 5.0], 0.5) == BOUNDS_S[-1]  # beyond the last bound
    assert percentile_s([1.0, *nothing[1:]], 0.5) == pytest.approx(BOUNDS_S[0] / 2)
    assert len(usage_sums.DURATIONS) == len(nothing)


async def test_rows_are_written_beside_sums_with_other_columns(tmp_path: Path) -> None:
    """They may be those of an older or newer version of the gateway."""
    with closing(sqlite3.connect(tmp_path / "usage.sqlite")) as old:
        old.execute("CREATE TABLE usage_sums (level TEXT, period TEXT, requests REAL)")
    rows = open_rows(tmp_path)
    rows.receive(receipt_with())
    await rows.close()
    assert await read(tmp_path, "requests") == [(1.0,)]
