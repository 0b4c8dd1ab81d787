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

from gateway.database.database import Connection, Database
from gateway.database.postgres import PostgresDatabase
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.requests.pages import PageQuery
from gateway.stored import object_store
from gateway.stored.object_store import SCHEMA, STORE_REMEDY, ObjectStore, StoredObject
from policies.responses import ResponsesSection
from tests.gateway.database.postgres_server import PostgresServer

ITEMS = [{"id": "msg_1", "type": "message", "text": "é\x00"}]
STORED = StoredObject(b'{"id":"resp_1"}')
LARGE = [{"id": "msg_1", "text": "x" * 100_000}]
PAGE = PageQuery(limit=100, is_ascending=True, after="")
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
    await store.put("response", "resp_1", "a", STORED, ITEMS)
    assert await store.get("response", "resp_1", "a") == STORED
    assert await store.with_items("response", "resp_1", "a") == (STORED, ITEMS)
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
    await store.put("conversation", "conv_1", "a", StoredObject(b"{}"))
    others = [ObjectStore(open_database(), POLICY, clock) for _ in range(2)]
    clock.now_s += 30

    def count(stored: StoredObject) -> StoredObject:
        return StoredObject(b"%d" % (int(stored.record.strip(b"{}") or 0) + 1))

    workers = (store, *others)
    await asyncio.gather(
        *(each.change("conversation", "conv_1", "a", count) for each in workers for _ in range(10)),
        *(
            each.append("conversation", "conv_1", "a", [{"id": f"{place} {number}"}])
            for place, each in enumerate(workers)
            for number in range(10)
        ),
    )
    clock.now_s += 50  # a change renews the time to live
    stored, items = await store.with_items("conversation", "conv_1", "a")
    assert (stored.record, len(items)) == (b"30", 30)
    assert [item["id"] for item in items if item["id"][0] == "1"] == [f"1 {number}" for number in range(10)]
    with pytest.raises(NotFound):
        await store.change("conversation", "conv_1", "b", count)
    for other in others:
        await other.close()


async def test_pages_hold_what_has_the_labels(store: ObjectStore) -> None:
    for number in range(10):
        record = msgspec.json.encode(
            {"id": f"chat_{number}", "model": "m", "metadata": {"k": "6" if number == 6 else "é\x00"}}
        )
        await store.put("chat", f"chat_{number}", "a" if number != 4 else "b", StoredObject(record))
    change = {"id": "chat_9", "model": "m", "metadata": {"k": "9"}}
    await store.change("chat", "chat_9", "a", lambda _: StoredObject(msgspec.json.encode(change)))

    async def page(limit: int, order: str, after: str = "", **labels: str) -> tuple[str, bool]:
        query = PageQuery(limit, order == "asc", after)
        wanted = {"model": "m", "metadata[k]": "é\x00"} | labels
        records, has_more = await store.page("chat", "a", query, wanted)
        return "".join(msgspec.json.decode(record)["id"][-1] for record in records), has_more

    assert await page(4, "asc") == ("0123", True)
    assert await page(4, "asc", "chat_3") == ("578", False)
    assert await page(3, "desc", "chat_3") == ("210", False)
    assert await page(9, "desc") == ("8753210", False)
    assert await page(9, "desc", model="n") == ("", False)
    for after in ("chat_4", "\x00"):  # another tenant's, none's
        with pytest.raises(InvalidRequest, match="after"):
            await page(4, "asc", after)


async def test_pages_are_bounded_in_bytes(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "MAX_PAGE_BYTES", 250)
    for number in range(4):
        await store.put("chat", f"chat_{number}", "a", StoredObject(b'{"model":"%s"}' % (b"x" * 100)))
    records, has_more = await store.page("chat", "a", PAGE, {})
    assert (len(records), has_more) == (2, True)


async def test_items_come_in_pages(store: ObjectStore) -> None:
    await store.put("conversation", "conv_1", "a", STORED)
    odd = "é\x00"
    await store.append("conversation", "conv_1", "a", [{"id": each} for each in ("1", odd, "3")])
    first, has_more = await store.page_of_items("conversation", "conv_1", "a", PageQuery(2, True, ""))
    assert [msgspec.json.decode(item.text)["id"] for item in first] == ["1", odd] and has_more
    rest, has_more = await store.page_of_items("conversation", "conv_1", "a", PageQuery(2, True, odd))
    assert ([item.id for item in rest], has_more) == (["3"], False)
    with pytest.raises(NotFound):
        await store.page_of_items("conversation", "conv_1", "b", PAGE)
    await store.delete_item("conversation", "conv_1", "a", odd)
    with pytest.raises(NotFound):
        await store.item("conversation", "conv_1", "a", odd)
    with pytest.raises(InvalidRequest, match="items"):
        await store.append("conversation", "conv_1", "a", [{"id": "3"}])


async def test_an_object_is_bounded(store: ObjectStore, open_database: Open, clock: Clock) -> None:
    policy = ResponsesSection(max_object_items=5, max_object_bytes=1 << 20)
    bounded = ObjectStore(open_database(), policy, clock)
    await bounded.put("conversation", "conv_1", "a", STORED)
    few = [{"id": str(number)} for number in range(5)]
    await bounded.append("conversation", "conv_1", "a", few)
    with pytest.raises(InvalidRequest, match="5 items") as raised:
        await bounded.append("conversation", "conv_1", "a", ITEMS)
    assert (raised.value.code, raised.value.param) == ("object_too_large", "items")
    await bounded.delete_item("conversation", "conv_1", "a", "3")
    large = {"text": "x" * 600_000}
    await bounded.append("conversation", "conv_1", "a", [large | {"id": "6"}])
    await bounded.delete_item("conversation", "conv_1", "a", "0")
    with pytest.raises(InvalidRequest, match="1048576 bytes"):
        await bounded.append("conversation", "conv_1", "a", [large | {"id": "7"}])
    await bounded.delete_item("conversation", "conv_1", "a", "6")  # what is erased counts no more
    await bounded.append("conversation", "conv_1", "a", [large | {"id": "7"}])
    await bounded.close()


async def test_the_oldest_make_room(tmp_path: Path, clock: Clock) -> None:
    store = ObjectStore(sqlite(str(tmp_path)), POLICY, clock)
    big = StoredObject(b"x" * 100_000)
    for number in range(300):
        clock.now_s += 0.01
        await store.put("response", f"resp_{number}", "a", big if number % 30 == 29 else STORED, ITEMS)
    assert await is_stored(store, "resp_299") and not await is_stored(store, "resp_0")
    await store.close()


async def test_no_more_is_erased_than_room_is_needed_for(tmp_path: Path, clock: Clock) -> None:
    store = ObjectStore(sqlite(str(tmp_path)), POLICY, clock)
    for number in range(8):
        clock.now_s += 1
        await store.put("conversation", f"conv_{number}", "a", STORED, LARGE)
    await store.append("conversation", "conv_0", "a", [each | {"id": i} for each in LARGE for i in "23"])
    assert len((await store.with_items("conversation", "conv_0", "a"))[1]) == 3
    assert 5 <= len((await store.page("conversation", "a", PAGE, {}))[0]) < 8
    await store.close()


async def test_what_a_request_names_makes_no_room_for_it(open_database: Open, clock: Clock) -> None:
    policy = ResponsesSection(ttl_s=60, max_bytes=1 << 30, max_bytes_per_tenant=1 << 20)
    store = ObjectStore(open_database(), policy, clock)
    await store.put("conversation", "conv_named", "a", STORED, LARGE)
    for number in range(30):
        clock.now_s += 0.1
        keep: list[Any] = [("conversation", "conv_named")]
        await store.put("response", f"resp_{number}", "a", STORED, LARGE, keep)
    assert len((await store.with_items("conversation", "conv_named", "a"))[1]) == 1
    await store._database.write(lambda connection: connection.execute("DELETE FROM objects").rowcount)
    await store.close()


async def test_who_stores_most_makes_room_for_all(tmp_path: Path, clock: Clock) -> None:
    store = ObjectStore(sqlite(str(tmp_path)), POLICY, clock)
    for number in range(3):
        await store.put("response", f"resp_{number}", "quiet", STORED, LARGE)  # the oldest of all
        clock.now_s += 0.1
    for number in range(3, 30):
        clock.now_s += 0.1
        await store.put("response", f"resp_{number}", f"flood {number % 2}", STORED, LARGE)
    assert all([await is_stored(store, f"resp_{number}", "quiet") for number in range(3)])
    await store.close()


async def test_a_tenant_that_stores_too_much_loses_its_own_oldest_only(
    open_database: Open, store: ObjectStore, clock: Clock
) -> None:
    policy = ResponsesSection(ttl_s=60, max_bytes=1 << 22, max_bytes_per_tenant=1 << 20)
    bounded = ObjectStore(open_database(), policy, clock)
    await bounded.put("response", "resp_other", "b", STORED)  # the oldest of all
    for number in range(60):
        clock.now_s += 0.1
        await bounded.put("response", f"resp_{number}", "a", STORED, LARGE)
    assert await is_stored(store, "resp_other", "b")
    assert await stored_numbers(store) == [*range(50, 60)]
    clock.now_s += 0.1
    await bounded.append("response", "resp_50", "a", [LARGE[0] | {"id": "other"}])
    assert await stored_numbers(store) == [50, *range(52, 60)]
    await bounded.delete("response", "resp_59", "a")  # what is erased counts no more
    await bounded.put("response", "resp_60", "a", STORED, LARGE)
    assert await is_stored(store, "resp_52")
    await bounded.close()


async def test_objects_of_an_earlier_version_are_found(open_database: Open, clock: Clock) -> None:
    database = open_database()
    row = ("chat", "chat_old", "a", clock() + 60, 0.0, '{"model":"m"}', '[{"role":"user"},{"role":"é"}]')

    def write(connection: Connection) -> None:
        columns = "kind, id, tenant, expires_s, leased_until_s, record, items"
        for number in range(40):
            values = (row[0], f"chat_{number}", *row[2:])
            connection.execute(f"INSERT INTO objects ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    await database.write(write)
    store = ObjectStore(database, POLICY, clock)
    items, _ = await store.page_of_items("chat", "chat_39", "a", PAGE)
    assert [(item.id, item.text) for item in items][1] == ("chat_39-1", '{"role":"é"}')
    assert len((await store.page("chat", "a", PAGE, {"model": "m"}))[0]) == 40
    await database.write(lambda connection: connection.execute("DELETE FROM objects").rowcount)
    await store.close()


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
from gateway.stored import object_store
from gateway.stored.object_store import SCHEMA, ObjectStore, StoredObject
from policies.responses import ResponsesSection

async def main():
    store = ObjectStore(SqliteDatabase(sys.argv[1], "objects", SCHEMA), ResponsesSection())
    for number in range(10**6):
        await store.put("response", f"resp_{number}", "a", StoredObject(b"x" * 5000), [{"id": str(number)}])
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
        found = await store.with_items("response", f"resp_{number}", "a")
        assert found == (StoredObject(b"x" * 5000), [{"id": str(number)}])
    await store.close()
