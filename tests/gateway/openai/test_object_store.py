"""Stored objects: per tenant, until they expire, bounded, complete after a crash, on both databases."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.database.database import Database
from gateway.database.postgres import PostgresDatabase
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.openai.object_store import SCHEMA, STORE_REMEDY, ObjectStore, StoredObject
from gateway.requests.pages import PageQuery
from policies.responses import ResponsesSection
from tests.gateway.database.postgres_server import PostgresServer

ITEMS = [{"id": "msg_1", "type": "message", "text": "é\x00"}]
STORED = StoredObject(b'{"id":"resp_1"}', ITEMS)
POLICY = ResponsesSection(ttl_s=60, max_bytes=1 << 20)
Open = Callable[[], Database[Any]]


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


def sqlite(folder: str) -> SqliteDatabase:
    return SqliteDatabase(folder, "objects", SCHEMA, STORE_REMEDY)


@pytest.fixture(params=["sqlite", "postgres"])
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "sqlite":
        return lambda: sqlite(str(tmp_path))
    server: PostgresServer = request.getfixturevalue("server")
    return lambda: PostgresDatabase(server.url, "objects", SCHEMA, STORE_REMEDY)


@pytest.fixture
async def store(open_database: Open, clock: Clock) -> AsyncIterator[ObjectStore]:
    database = open_database()
    yield ObjectStore(database, POLICY, clock)
    await database.write(lambda connection: connection.execute("DELETE FROM objects").rowcount)
    await database.close()


async def is_stored(store: ObjectStore, object_id: str, tenant: str = "a") -> bool:
    try:
        await store.get("response", object_id, tenant)
    except NotFound:
        return False
    return True


async def stored_numbers(store: ObjectStore) -> list[int]:
    return [number for number in range(60) if await is_stored(store, f"resp_{number}")]


async def test_what_is_put_is_there_for_its_tenant_only(store: ObjectStore) -> None:
    await store.put("response", "resp_1", "a", STORED)
    assert await store.get("response", "resp_1", "a") == STORED
    assert not await is_stored(store, "resp_1", "b")
    with pytest.raises(NotFound, match="Response with id 'resp_1'"):
        await store.delete("response", "resp_1", "b")
    with pytest.raises(NotFound, match="Conversation"):
        await store.get("conversation", "resp_1", "a")
    await store.delete("response", "resp_1", "a")
    assert not await is_stored(store, "resp_1")


@pytest.mark.parametrize("object_id", ["a\x00b", "\ud800", "é", "x" * 5000])
async def test_ids_that_no_database_could_hold_are_unknown(store: ObjectStore, object_id: str) -> None:
    with pytest.raises(NotFound):
        await store.get("response", object_id, "a")
    with pytest.raises(NotFound):
        await store.delete("response", object_id, "a")


async def test_it_expires(store: ObjectStore, clock: Clock) -> None:
    await store.put("response", "resp_1", "a", STORED)
    clock.now_s += 59
    assert await is_stored(store, "resp_1")
    clock.now_s += 2
    assert not await is_stored(store, "resp_1")
    with pytest.raises(NotFound):
        await store.delete("response", "resp_1", "a")
    await store.put("response", "resp_2", "a", STORED)  # erases what has expired
    clock.now_s -= 2
    assert not await is_stored(store, "resp_1")


async def test_changes_of_several_workers_are_all_kept(
    store: ObjectStore, open_database: Open, clock: Clock
) -> None:
    await store.put("conversation", "conv_1", "a", StoredObject(b"{}", []))
    others = [ObjectStore(open_database(), POLICY, clock) for _ in range(2)]
    clock.now_s += 30

    def append(stored: StoredObject) -> StoredObject:
        return StoredObject(b"{}", [*stored.items, {"id": str(len(stored.items))}])

    await asyncio.gather(
        *(each.change("conversation", "conv_1", "a", append) for each in (store, *others) for _ in range(10))
    )
    clock.now_s += 50  # a change renews the time to live
    items = (await store.get("conversation", "conv_1", "a")).items
    assert [item["id"] for item in items] == [str(number) for number in range(30)]
    with pytest.raises(NotFound):
        await store.change("conversation", "conv_1", "b", append)
    for other in others:
        await other.close()


async def test_pages_hold_what_fits(store: ObjectStore) -> None:
    for number in range(10):
        record = msgspec.json.encode({"id": f"chat_{number}"})
        await store.put("chat", f"chat_{number}", "a" if number != 4 else "b", StoredObject(record, []))

    async def page(limit: int, order: str, after: str = "") -> tuple[str, bool]:
        query = PageQuery(limit, order == "asc", after)
        records, has_more = await store.page("chat", "a", query, lambda record: b"_6" not in record)
        return "".join(msgspec.json.decode(record)["id"][-1] for record in records), has_more

    assert await page(4, "asc") == ("0123", True)
    assert await page(4, "asc", "chat_3") == ("5789", False)
    assert await page(4, "desc", "chat_3") == ("210", False)
    assert await page(9, "desc") == ("98753210", False)
    with pytest.raises(InvalidRequest, match="after"):
        await page(4, "asc", "chat_4")  # another tenant's


async def test_the_oldest_make_room(tmp_path: Path, clock: Clock) -> None:
    store = ObjectStore(sqlite(str(tmp_path)), POLICY, clock)
    big = StoredObject(b"x" * 100_000, ITEMS)
    for number in range(300):
        clock.now_s += 0.01
        await store.put("response", f"resp_{number}", "a", big if number % 30 == 29 else STORED)
    assert await is_stored(store, "resp_299") and not await is_stored(store, "resp_0")
    await store.close()


async def test_no_more_is_erased_than_room_is_needed_for(tmp_path: Path, clock: Clock) -> None:
    store = ObjectStore(sqlite(str(tmp_path)), POLICY, clock)
    large = StoredObject(b"{}", [{"text": "x" * 100_000}])
    for number in range(9):
        clock.now_s += 1
        await store.put("conversation", f"conv_{number}", "a", large)
    await store.change("conversation", "conv_0", "a", lambda stored: StoredObject(b"{}", stored.items * 3))
    assert len((await store.get("conversation", "conv_0", "a")).items) == 3
    query = PageQuery(limit=100, is_ascending=True, after="")
    assert 6 <= len((await store.page("conversation", "a", query, lambda _: True))[0]) < 9
    await store.close()


async def test_a_tenant_that_stores_too_much_loses_its_own_oldest_only(
    open_database: Open, store: ObjectStore, clock: Clock
) -> None:
    policy = ResponsesSection(ttl_s=60, max_bytes=1 << 22, max_bytes_per_tenant=1 << 20)
    bounded = ObjectStore(open_database(), policy, clock)
    await bounded.put("response", "resp_other", "b", STORED)  # the oldest of all
    large = StoredObject(b"{}", [{"text": "x" * 100_000}])
    for number in range(60):
        clock.now_s += 0.1
        await bounded.put("response", f"resp_{number}", "a", large)
    assert await is_stored(store, "resp_other", "b")
    assert await stored_numbers(store) == [*range(50, 60)]
    clock.now_s += 0.1
    await bounded.change("response", "resp_50", "a", lambda stored: StoredObject(b"{}", stored.items * 2))
    assert await stored_numbers(store) == [50, *range(52, 60)]
    await bounded.delete("response", "resp_59", "a")  # what is erased counts no more
    await bounded.put("response", "resp_60", "a", large)
    assert await is_stored(store, "resp_52")
    await bounded.close()


async def test_the_file_is_private(tmp_path: Path) -> None:
    store = ObjectStore(sqlite(str(tmp_path)), POLICY)
    await store.put("response", "resp_1", "a", STORED)
    assert stat.S_IMODE((tmp_path / "objects.sqlite").stat().st_mode) == 0o600
    await store.close()


async def test_without_a_folder_it_lives_in_memory() -> None:
    store = ObjectStore(sqlite(""), POLICY)
    await store.put("response", "resp_1", "a", STORED)
    assert await is_stored(store, "resp_1")
    await store.close()


async def test_a_file_that_cannot_be_opened_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = ObjectStore(sqlite(str(tmp_path / "file" / "folder")), POLICY)
    with pytest.raises(Unavailable, match="'store': false"):
        await store.put("response", "resp_1", "a", STORED)
    await store.close()


WRITER = """
import asyncio, sys
from gateway.database.sqlite import SqliteDatabase
from gateway.openai.object_store import SCHEMA, ObjectStore, StoredObject
from policies.responses import ResponsesSection

async def main():
    store = ObjectStore(SqliteDatabase(sys.argv[1], "objects", SCHEMA), ResponsesSection())
    for number in range(10**6):
        await store.put("response", f"resp_{number}", "a", StoredObject(b"x" * 5000, [{"id": str(number)}]))
        print(number, flush=True)

asyncio.run(main())
"""


async def test_everything_written_survives_a_kill(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        written = [int(writer.stdout.readline()) for _ in range(20)]
        writer.kill()
        written += [int(line) for line in writer.stdout.read().split()]
    store = ObjectStore(sqlite(str(tmp_path)), ResponsesSection())
    for number in written:
        found = await store.get("response", f"resp_{number}", "a")
        assert found == StoredObject(b"x" * 5000, [{"id": str(number)}])
    await store.close()
