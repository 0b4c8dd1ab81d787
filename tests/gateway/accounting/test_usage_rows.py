"""Each receipt becomes one row, whatever the database does in between; the bounds of age and size hold."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.accounting import usage_rows, usage_sums
from gateway.accounting.counters import DAY_S
from gateway.accounting.receipt import Receipt
from gateway.accounting.usage_rows import SCHEMA, UsageRows
from gateway.accounting.usage_sums import TABLE, most_groups
from gateway.admin.traffic import TrafficQuery
from gateway.admin.usage import UsageQuery
from gateway.database.database import Connection, Database, Work
from gateway.database.postgres import PostgresDatabase
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import Unavailable
from policies.usage import UsageSection
from tests.gateway.accounting.receipts import NOW_S, receipt_with
from tests.gateway.database.postgres_server import PostgresServer

WAIT_S = 30.0
Open = Callable[[], Database[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the database again, as each worker does."""
    if request.param == "sqlite":
        yield lambda: SqliteDatabase(str(tmp_path), "usage", SCHEMA)
        return
    url = request.getfixturevalue("server").url
    yield lambda: PostgresDatabase(url, "usage", SCHEMA)
    database = PostgresDatabase(url, "usage", SCHEMA)
    for table in ("usage_rows", TABLE):
        await database.write(partial(erase, table))
    await database.close()


def erase(table: str, connection: Connection) -> None:
    connection.execute(f"DELETE FROM {table}")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_rows, "INTERVAL_S", 0.005)
    monkeypatch.setattr(usage_rows, "MAX_PAUSE_S", 0.02)


def numbers(connection: Connection) -> tuple[int, int, float]:
    """Rows, their input tokens and their cost."""
    query = "SELECT COUNT(*), COALESCE(SUM(input_tokens), 0), COALESCE(SUM(cost_usd), 0) FROM usage_rows"
    count, tokens, usd = connection.execute(query).fetchone()
    return int(count), int(tokens), float(usd)


async def read(opened: Open) -> tuple[int, int, float]:
    database = opened()
    try:
        return await database.read(numbers)
    finally:
        await database.close()


async def wait_for(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.002)


class Unreliable(Database[Any]):
    """Fails as often as not: before the transaction, in it, or when it is committed already."""

    def __init__(self, real: Database[Any], seed: int) -> None:
        self._real = real
        self._random = random.Random(seed)
        self.num_failed = 0
        self.fault = ""

    async def write(self, work: Work[Any], tenant: str = "") -> Any:  # noqa: ANN401
        fails = self._random.choice(("before", "within", "after", "", "", ""))
        if fails:
            self.num_failed += 1
        if fails == "before":
            raise Unavailable("scripted")
        if fails == "within":

            def broken(connection: Connection) -> None:
                work(connection)
                raise sqlite3.OperationalError("disk I/O error")

            with pytest.raises(Exception, match=r"store|disk"):
                await self._real.write(broken)
            raise Unavailable("scripted")
        found = await self._real.write(work)
        if fails == "after":
            raise Unavailable("scripted")
        return found

    async def close(self) -> None:
        await self._real.close()

    def used_bytes(self, connection: Connection) -> int:
        return self._real.used_bytes(connection)

    run = connect = disconnect = None  # type: ignore[assignment]


@pytest.mark.parametrize("seed", range(4))
async def test_each_receipt_is_one_row_whatever_fails(
    opened: Open, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_rows, "BATCH_ROWS", 7)
    faults: list[str] = []
    databases = [Unreliable(opened(), seed * 10 + number) for number in range(4)]  # one for each worker
    workers = [UsageRows(each, faults.append, lambda: NOW_S) for each in databases]
    rng = random.Random(seed)
    receipts = []
    for number in range(300):
        # All of one id, as those of a client that sends the same x-request-id with each request.
        receipts.append(receipt_with(request_id="same", input_tokens=number, cost_usd=0.001 * number))
        rng.choice(workers).receive(receipts[-1])
        if rng.random() < 0.1:
            await asyncio.sleep(0.003)
    await wait_for(lambda: not any(worker._waiting for worker in workers))
    for worker in workers:
        await worker.close()
    count, tokens, usd = await read(opened)
    assert (count, tokens) == (300, sum(each.input_tokens for each in receipts))
    assert usd == pytest.approx(sum(each.cost_usd for each in receipts))
    assert faults.count("unavailable") == sum(each.num_failed for each in databases) > 0
    assert "dropped" not in faults


async def test_closing_writes_what_waits(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_rows, "INTERVAL_S", 3600.0)
    rows = UsageRows(opened(), now_s=lambda: NOW_S)
    for _ in range(1200):
        rows.receive(receipt_with())
    await rows.close()
    assert (await read(opened))[0] == 1200


async def test_closing_while_a_batch_is_written_writes_it_once(opened: Open) -> None:
    rows = UsageRows(opened(), now_s=lambda: NOW_S)
    for _ in range(2000):
        rows.receive(receipt_with())
    while not rows._database._opened:  # the first batch is under way
        await asyncio.sleep(0)
    await rows.close()
    assert (await read(opened))[0] == 2000


async def test_a_worker_that_starts_again_goes_on(opened: Open) -> None:
    for _ in range(3):
        rows = UsageRows(opened(), now_s=lambda: NOW_S)
        rows.receive(receipt_with())
        await rows.close()
    assert (await read(opened))[0] == 3


async def test_rows_wait_for_a_server_that_is_away(server: PostgresServer) -> None:
    faults: list[str] = []
    rows = UsageRows(PostgresDatabase(server.url, "usage", SCHEMA), faults.append, lambda: NOW_S)
    rows.receive(receipt_with())
    await wait_for(lambda: not rows._waiting)
    server.stop()
    for _ in range(5):
        rows.receive(receipt_with())
    await wait_for(lambda: len(faults) >= 2)
    assert "OperationalError" in rows.fault
    server.start()
    await wait_for(lambda: not rows._waiting)
    assert not rows.fault and "dropped" not in faults
    assert await rows.read(numbers, "") == (6, 18, 1.5)
    await rows._database.write(lambda connection: connection.execute("DELETE FROM usage_rows").rowcount)
    await rows.close()


async def test_rows_wait_for_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.database.sqlite.BUSY_TIMEOUT_S", 0.05)
    faults: list[str] = []
    rows = UsageRows(SqliteDatabase(str(tmp_path), "usage", SCHEMA), faults.append, lambda: NOW_S)
    rows.receive(receipt_with())
    await wait_for(lambda: not rows._waiting)
    with sqlite3.connect(tmp_path / "usage.sqlite", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        rows.receive(receipt_with())
        await wait_for(lambda: "unavailable" in faults)
        assert await rows.read(numbers, "") == (1, 3, 0.25)
        other.execute("ROLLBACK")
    await wait_for(lambda: not rows._waiting)
    await rows.close()
    assert (await read(lambda: SqliteDatabase(str(tmp_path), "usage", SCHEMA)))[0] == 2


class Small(SqliteDatabase):
    """On a disk of 30 pages, until `is_full` is False."""

    is_full = True

    def run(self, work: Work[Any], *, is_write: bool) -> Any:  # noqa: ANN401
        pages = 30 if self.is_full else 1_000_000
        self.connection.execute(f"PRAGMA max_page_count = {pages}")
        return super().run(work, is_write=is_write)


async def test_a_full_disk_is_counted_and_its_rows_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_rows, "MAX_WAITING", 1500)
    faults: list[str] = []
    database = Small(str(tmp_path), "usage", SCHEMA)
    rows = UsageRows(database, faults.append, lambda: NOW_S)
    for _ in range(1600):
        rows.receive(receipt_with())
    await wait_for(lambda: "unavailable" in faults)
    assert faults.count("dropped") == 100 and "OperationalError" in rows.fault
    database.is_full = False
    await wait_for(lambda: not rows._waiting)
    assert (await rows.read(numbers, ""))[0] == 1500
    await rows.close()


async def test_a_folder_that_cannot_be_made_loses_rows_at_the_end_and_counts_them(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    faults: list[str] = []
    rows = UsageRows(SqliteDatabase(str(tmp_path / "file" / "data"), "usage", SCHEMA), faults.append)
    rows.receive(receipt_with())
    await rows.close()
    assert faults.count("dropped") == 1 and faults.count("unavailable") >= 1


async def test_old_rows_are_erased(opened: Open) -> None:
    rows = UsageRows(opened(), now_s=lambda: NOW_S)
    rows.policy = UsageSection(keep_days=2)
    for age in range(5):
        rows.receive(receipt_with(ended_s=NOW_S - age * DAY_S + 1))
    await rows.close()
    assert (await read(opened))[0] == 3


async def test_nothing_is_written_for_zero_days(opened: Open) -> None:
    rows = UsageRows(opened())
    rows.policy = UsageSection(keep_days=0)
    rows.receive(receipt_with())
    await rows.close()
    assert (await read(opened))[0] == 0


async def test_size_is_bounded_and_refusals_displace_no_bill(tmp_path: Path) -> None:
    database = SqliteDatabase(str(tmp_path), "usage", SCHEMA)
    rows = UsageRows(database, now_s=lambda: NOW_S)
    rows.policy = UsageSection(max_bytes=1 << 20)
    for number in range(1000):
        rows.receive(receipt_with(ended_s=NOW_S + number))
    for number in range(20_000):
        rows.receive(receipt_with(ended_s=NOW_S + 1000 + number, status=429, cost_usd=0.0))
    await wait_for(lambda: not rows._waiting)
    assert await database.read(database.used_bytes) < 1.3 * (1 << 20)
    paid = "SELECT COUNT(*) FROM usage_rows WHERE status = 200"
    assert (await rows.read(lambda c: c.execute(paid).fetchone()[0], "")) == 1000
    for number in range(20_000):
        rows.receive(receipt_with(ended_s=NOW_S + 30_000 + number))
    await wait_for(lambda: not rows._waiting)
    oldest = "SELECT MIN(ended_s), MAX(ended_s) FROM usage_rows"
    first, last = await rows.read(lambda c: c.execute(oldest).fetchone(), "")
    assert first > NOW_S + 30_000 and last == NOW_S + 49_999
    assert await database.read(database.used_bytes) < 1.3 * (1 << 20)
    await rows.close()


async def test_sums_of_many_groups_displace_no_bill(tmp_path: Path) -> None:
    database = SqliteDatabase(str(tmp_path), "usage", SCHEMA)
    rows = UsageRows(database, now_s=lambda: NOW_S)
    rows.policy = UsageSection(max_bytes=1 << 20)
    for number in range(1500):
        rows.receive(receipt_with(ended_s=NOW_S + number / 100, tenant=f"tenant-{number}"))
    await wait_for(lambda: not rows._waiting)

    def counted(connection: Connection) -> tuple[int, ...]:
        sums = f"SELECT COUNT(*), SUM(requests) FROM {TABLE} WHERE level = 'day'"
        kept = connection.execute("SELECT COUNT(*) FROM usage_rows").fetchone()[0]
        return kept, *connection.execute(sums).fetchone()

    kept, num_sums, requests = await rows.read(counted, "")
    assert (kept, requests) == (1500, 1500) and num_sums <= most_groups(1 << 20, 90) + 1
    await rows.close()


async def test_odd_values_are_written(opened: Open) -> None:
    rows = UsageRows(opened(), now_s=lambda: NOW_S)
    odd = receipt_with(input_tokens=1 << 70, model="modèle 模型 '\"; DROP TABLE usage_rows; --", route="?%s")
    rows.receive(odd)
    await rows.close()
    assert (await read(opened))[:2] == (1, usage_rows.MAX_TOKENS)


async def test_without_receipts_nothing_is_opened(tmp_path: Path) -> None:
    rows = UsageRows(SqliteDatabase(str(tmp_path / "data"), "usage", SCHEMA))
    await rows.close()
    assert not (tmp_path / "data").exists()


async def write(opened: Open, *receipts: Receipt) -> None:
    rows = UsageRows(opened(), now_s=lambda: NOW_S)
    for receipt in receipts:
        rows.receive(receipt)
    await rows.close()


async def test_rows_of_before_there_were_sums_are_counted_once(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways start at once; one is killed in the middle, and starts again."""
    old = [receipt_with(ended_s=NOW_S - days * DAY_S, cache="exact") for days in (0, 1, 1, 9, 40)]
    refused = receipt_with(tenant="b", status=429, error_type="RateLimited", cost_usd=0.0)
    await write(opened, *old, refused)
    database = opened()
    await database.write(partial(erase, TABLE))  # as a version without sums has left it
    killed = UsageRows(database, now_s=lambda: NOW_S)
    with monkeypatch.context() as patch:
        patch.setattr(usage_sums, "PERIOD_S", usage_sums.PERIOD_S | {"day": 0})  # after the sums of hours
        with pytest.raises(ZeroDivisionError):
            await killed._fill()
    await database.close()
    await asyncio.gather(*(write(opened, receipt_with(tenant=name)) for name in ("c", "d")))
    await write(opened, receipt_with(tenant="c"))
    reading = UsageRows(opened())
    for since, requests, hits in (("24h", 7, 3), ("30d", 8, 4)):
        found = await reading.read(TrafficQuery.read({"since": since, "by": "tenant"}, NOW_S).answer, "")
        groups = {each["name"]: each for each in found["groups"]}
        assert {name: each["requests"] for name, each in groups.items()} == {
            **{"a": requests - 4, "b": 1, "c": 2, "d": 1},
        }
        assert (found["total"]["requests"], found["total"]["cache_hits"]) == (requests, hits)
        assert groups["a"]["cost_usd"] == 0.25 * hits and groups["a"]["input_tokens"] == 3 * hits
        assert (groups["b"]["errors_by_class"], groups["b"]["p50_s"]) == ({"other": 1}, None)
        assert groups["c"]["p50_s"] > 0
    await reading.close()


async def test_rows_are_written_where_older_ones_cannot_be_counted(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may end what takes long, or there may be too many."""
    await write(opened, receipt_with(), receipt_with())
    with monkeypatch.context() as patch:
        patch.setattr(
            usage_sums, "_FILL", "SELECT no_column FROM usage_rows WHERE ended_s > ? AND ended_s < ?"
        )
        await erased(opened)
        faults: list[str] = []
        rows = UsageRows(opened(), faults.append, lambda: NOW_S)
        rows.receive(receipt_with())
        await wait_for(lambda: not rows._waiting)
        await rows.close()
        assert faults == ["unavailable"] * usage_rows.MAX_FAILED_FILLS
    assert (await read(opened))[0] == 3
    monkeypatch.setattr(usage_sums, "MOST_FILLED", 2)
    await erased(opened)
    await write(opened, receipt_with())
    reading = UsageRows(opened())
    found = await reading.read(TrafficQuery.read({"since": "30d", "by": "tenant"}, NOW_S).answer, "")
    await reading.close()
    assert (await read(opened))[0] == 4 and found["total"]["requests"] == 1


async def erased(opened: Open) -> None:
    database = opened()
    await database.write(partial(erase, TABLE))
    await database.close()


async def test_both_databases_give_the_same_sums(opened: Open) -> None:
    rows = UsageRows(opened(), now_s=lambda: NOW_S)
    for tenant in ("a", "b", "a"):
        rows.receive(receipt_with(tenant=tenant))
    await wait_for(lambda: not rows._waiting)
    query = UsageQuery.read({"by": "tenant,day,status", "since": "2026-11-01", "status": "200"}, NOW_S + 60)
    found = (await rows.read(query.of("a").totals, "a"))["data"]
    assert [list(group.values())[:6] for group in found] == [["a", "2026-11-25", 200, 2, 0, 6]]
    assert all(isinstance(group["input_tokens"], int) for group in found)
    await rows.close()
