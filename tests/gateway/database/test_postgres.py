"""Transactions of several workers on a real PostgreSQL server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from gateway.database.database import Connection
from gateway.database.postgres import PostgresDatabase
from gateway.errors import Unavailable
from tests.gateway.database.postgres_server import PostgresServer

SCHEMA = "CREATE TABLE IF NOT EXISTS counters (number {serial}, value TEXT NOT NULL UNIQUE);"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
async def database(server: PostgresServer) -> AsyncIterator[PostgresDatabase]:
    database = PostgresDatabase(server.url, "counters", SCHEMA, " Try later.")
    yield database
    await database.write(lambda connection: connection.execute("DELETE FROM counters").rowcount)
    await database.close()


def add_one(connection: Connection) -> None:
    connection.execute("LOCK TABLE counters")
    (value,) = connection.execute("SELECT count(*) FROM counters").fetchone()
    connection.execute("INSERT INTO counters (value) VALUES (?)", (str(value + 1),))


async def values(database: PostgresDatabase) -> list[str]:
    rows = await database.read(lambda c: c.execute("SELECT value FROM counters ORDER BY number").fetchall())
    return [value for (value,) in rows]


async def test_workers_create_the_table_once_and_share_it(
    server: PostgresServer, database: PostgresDatabase
) -> None:
    workers = [PostgresDatabase(server.url, "counters", SCHEMA) for _ in range(3)]
    await asyncio.gather(*(worker.write(add_one) for worker in workers for _ in range(10)))
    assert await values(database) == [str(number) for number in range(1, 31)]
    for worker in workers:
        await worker.close()


async def test_a_write_that_fails_leaves_nothing_and_is_logged_without_its_values(
    database: PostgresDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(connection: Connection) -> None:
        for _ in range(2):
            connection.execute("INSERT INTO counters (value) VALUES (?)", ("a secret",))

    with caplog.at_level(logging.ERROR), pytest.raises(Unavailable, match=r"failed.* Try later\."):
        await database.write(fail)
    assert await values(database) == []
    assert "duplicate key" in caplog.text and "secret" not in caplog.text


async def test_a_server_that_was_away_is_found_again(
    server: PostgresServer, database: PostgresDatabase
) -> None:
    await database.write(add_one)
    server.stop()
    with pytest.raises(Unavailable) as raised:
        await database.read(lambda c: c.execute("SELECT 1").fetchone())
    assert raised.value.code == "counter_store_unavailable"
    server.start()
    assert await values(database) == ["1"]
