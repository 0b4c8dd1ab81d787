"""Transactions of one database file by several workers."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.database.database import Connection
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import Unavailable

SCHEMA = "CREATE TABLE IF NOT EXISTS counters (value INTEGER NOT NULL);"


def add_one(connection: Connection) -> None:
    (value,) = connection.execute("SELECT coalesce(max(value), 0) FROM counters").fetchone()
    connection.execute("INSERT INTO counters VALUES (?)", (value + 1,))


async def values(database: SqliteDatabase) -> list[int]:
    rows = await database.read(lambda c: c.execute("SELECT value FROM counters ORDER BY value").fetchall())
    return [value for (value,) in rows]


async def test_a_write_sees_what_other_workers_have_written(tmp_path: Path) -> None:
    workers = [SqliteDatabase(str(tmp_path), "counters", SCHEMA) for _ in range(3)]
    await asyncio.gather(*(worker.write(add_one) for worker in workers for _ in range(20)))
    assert await values(workers[0]) == list(range(1, 61))
    for worker in workers:
        await worker.close()


@pytest.mark.parametrize("attempt", range(5))
async def test_workers_that_start_together_open_a_new_file(tmp_path: Path, attempt: int) -> None:
    workers = [SqliteDatabase(str(tmp_path), "counters", SCHEMA) for _ in range(8)]
    await asyncio.gather(*(worker.write(add_one) for worker in workers))
    assert await values(workers[0]) == list(range(1, 9))
    for worker in workers:
        await worker.close()


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    database = SqliteDatabase(str(tmp_path), "counters", SCHEMA, " Try later.")

    def fail(connection: Connection) -> None:
        add_one(connection)
        connection.execute("INSERT INTO nothing VALUES (1)")

    assert not database.exists()
    with pytest.raises(Unavailable, match=r"counters failed.* Try later\.") as raised:
        await database.write(fail)
    assert raised.value.code == "counter_store_unavailable"
    assert await values(database) == [] and database.exists()
    await database.close()


async def test_a_write_begins_soon_after_another_process_has_ended_its_own(tmp_path: Path) -> None:
    database = SqliteDatabase(str(tmp_path), "counters", SCHEMA)
    await database.write(add_one)
    delays_s = []
    while len(delays_s) < 20 and min(delays_s, default=1.0) >= 0.04:  # a busy machine needs several attempts
        other = sqlite3.connect(tmp_path / "counters.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(database.write(add_one))
        await asyncio.sleep(0.36)  # SQLite by itself tries after 0.328 s and 0.428 s
        other.execute("COMMIT")
        began_s = time.monotonic()
        await writing
        delays_s.append(time.monotonic() - began_s)
        other.close()
    assert min(delays_s) < 0.04, delays_s
    await database.close()


def _open_in_threads(folders: list[str], ready: Any, faults: Any) -> None:  # noqa: ANN401
    def use(database: SqliteDatabase, is_write: bool) -> None:
        ready.wait()
        try:
            database.run(
                lambda connection: connection.execute("SELECT * FROM t").fetchall(), is_write=is_write
            )
        except sqlite3.Error as error:
            faults.put(error.sqlite_errorname)

    for folder in folders:
        database = SqliteDatabase(folder, "shared", "CREATE TABLE IF NOT EXISTS t (a);")
        threads = [
            threading.Thread(target=use, args=(database, is_write)) for is_write in (False, True, False)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_two_workers_whose_threads_all_open_a_new_file_at_once(tmp_path: Path) -> None:
    """A thread that creates the file must not drop the locks of another's connection."""
    fork = multiprocessing.get_context("fork")
    faults = fork.Queue()
    arguments = ([str(tmp_path / str(number)) for number in range(80)], fork.Barrier(6), faults)
    workers = [fork.Process(target=_open_in_threads, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [faults.get() for _ in range(faults.qsize())] == []
