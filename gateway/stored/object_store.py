"""What tenants store and find again by its id: responses, conversations and chat completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from gateway.database.database import Connection, Database, T, Work
from gateway.errors import InvalidRequest, NotFound
from gateway.requests import refusals
from gateway.requests.pages import PageQuery
from gateway.stored.object_rows import (
    SCHEMA,
    Item,
    Kind,
    Named,
    Room,
    add_items,
    expand,
    is_id,
    items_of,
    key_of,
    label_of,
    set_labels,
    set_size,
    size_of,
)
from policies.responses import ResponsesSection

__all__ = ["SCHEMA", "STORE_REMEDY", "Kind", "ObjectStore", "StoredObject"]


class _Names(NamedTuple):
    title: str
    param: str  # of the id
    code: str


_NAMES: dict[Kind, _Names] = {
    "response": _Names("Response", "response_id", "response_not_found"),
    "events": _Names("Stream of response", "response_id", "response_not_found"),
    "conversation": _Names("Conversation", "conversation_id", "conversation_not_found"),
    "chat": _Names("Chat completion", "completion_id", "chat_completion_not_found"),
}
STORE_REMEDY = " With 'store': false a request needs none."
MAX_PAGE_BYTES = 16 << 20
"""A page ends before it is larger, if it has one entry."""
_SHARE = 4
"""No object may have more than this part of what its tenant may store."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object without its items: a response's input with what it continues, or a chat's messages."""

    record: bytes  # JSON, as the API shows it
    leased_until_s: float = 0.0  # a process generates it and renews this; 0: none does


class _Row(NamedTuple):
    number: int
    record: str
    leased_until_s: float


class ObjectStore:
    """The objects of all tenants; every method takes the tenant that may see them."""

    def __init__(
        self, database: Database[Any], policy: ResponsesSection, now_s: Callable[[], float] = time.time
    ) -> None:
        """`database` has SCHEMA."""
        self._database = database
        self._room = Room(database, policy)
        self._expanding = asyncio.Lock()
        self._is_expanded = False
        self.policy = policy
        self.max_object_bytes = min(policy.max_object_bytes, policy.max_bytes_per_tenant // _SHARE)
        self.now_s = now_s

    @property
    def is_enabled(self) -> bool:
        """False when the policies say that nothing is stored."""
        return self.policy.store

    @property
    def fault(self) -> str:
        """Why the database failed last; "" when it did not."""
        return self._database.fault

    async def start(self) -> None:
        """Nothing to start: the database is opened on first use."""

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()

    async def put(
        self,
        kind: Kind,
        object_id: str,
        tenant: str,
        stored: StoredObject,
        items: Sequence[dict[str, Any]] = (),
        keep: Sequence[Named] = (),
    ) -> None:
        """Store an object; what `keep` names makes no room for it. Raises Unavailable."""

        def write(connection: Connection) -> None:
            rows = items_of(kind, object_id, items)
            num_bytes = len(stored.record) + size_of(rows)
            self._room.make(connection, tenant, num_bytes, keep, self.now_s())
            columns = "kind, id, tenant, expires_s, leased_until_s, record, items"
            values = (
                kind,
                object_id,
                tenant,
                self._expires_s(),
                stored.leased_until_s,
                stored.record.decode(),
            )
            query = f"INSERT INTO objects ({columns}) VALUES (?, ?, ?, ?, ?, ?, '') RETURNING number"
            (number,) = connection.execute(query, values).fetchone()
            add_items(connection, number, rows)
            set_size(connection, number, tenant, num_bytes)
            if kind == "chat":
                set_labels(connection, number, tenant, stored.record)

        await self._write(write, tenant)

    async def get(self, kind: Kind, object_id: str, tenant: str) -> StoredObject:
        """An object of this tenant. Raises NotFound or Unavailable."""

        def read(connection: Connection) -> StoredObject:
            return _stored(self._find(connection, kind, object_id, tenant))

        return await self._read(read, tenant)

    async def with_items(
        self, kind: Kind, object_id: str, tenant: str
    ) -> tuple[StoredObject, list[dict[str, Any]]]:
        """An object with all of its items. Raises NotFound or Unavailable."""

        def read(connection: Connection) -> tuple[StoredObject, list[dict[str, Any]]]:
            row = self._find(connection, kind, object_id, tenant)
            query = "SELECT item FROM object_items WHERE object = ? ORDER BY number"
            items = connection.execute(query, (row.number,))
            return _stored(row), [msgspec.json.decode(item) for (item,) in items]

        return await self._read(read, tenant)

    async def page_of_items(
        self, kind: Kind, object_id: str, tenant: str, query: PageQuery
    ) -> tuple[list[Item], bool]:
        """Some items of an object, and whether more follow. Raises ApiError."""

        def read(connection: Connection) -> tuple[list[Item], bool]:
            row = self._find(connection, kind, object_id, tenant)
            page = query.after_key(key_of)
            rows = page.following(connection, "object_items", "id, item", "object = ?", (row.number,))
            found = [Item(*row) for row in rows]
            return found[: query.limit], len(found) > query.limit

        return await self._read(read, tenant)

    async def item(self, kind: Kind, object_id: str, tenant: str, item_id: str) -> bytes:
        """One item of an object. Raises NotFound or Unavailable."""

        def read(connection: Connection) -> bytes:
            row = self._find(connection, kind, object_id, tenant)
            return _item(connection, row, item_id)[1].encode()

        return await self._read(read, tenant)

    async def change(
        self, kind: Kind, object_id: str, tenant: str, change: Callable[[StoredObject], StoredObject]
    ) -> StoredObject:
        """Replace an object by what `change` makes of it, and keep that as long as a new one.

        Raises NotFound, Unavailable, or what `change` raises, which runs in a thread.
        """

        def write(connection: Connection) -> StoredObject:
            row = self._find(connection, kind, object_id, tenant, self._database.lock)
            changed = change(_stored(row))
            num_more = len(changed.record) - len(row.record.encode())
            self._grow(connection, row, (kind, object_id), tenant, num_more)
            connection.execute(
                "UPDATE objects SET leased_until_s = ?, record = ? WHERE number = ?",
                (changed.leased_until_s, changed.record.decode(), row.number),
            )
            if kind == "chat":
                set_labels(connection, row.number, tenant, changed.record)
            return changed

        return await self._write(write, tenant)

    async def append(
        self,
        kind: Kind,
        object_id: str,
        tenant: str,
        items: Sequence[dict[str, Any]],
        keep: Sequence[Named] = (),
        *,
        is_bounded: bool = True,
    ) -> None:
        """Add items to an object; `is_bounded`: not beyond its bounds.

        Raises NotFound, Unavailable, or InvalidRequest for an id that it has already.
        """

        def write(connection: Connection) -> None:
            row = self._find(connection, kind, object_id, tenant, self._database.lock)
            rows = items_of(kind, object_id, items)
            self._check_ids(connection, row, rows)
            if is_bounded:
                self._check_bounds(connection, row, rows)
            self._grow(connection, row, (kind, object_id), tenant, size_of(rows), keep)
            add_items(connection, row.number, rows)

        await self._write(write, tenant)

    async def delete_item(self, kind: Kind, object_id: str, tenant: str, item_id: str) -> bytes:
        """Erase one item; the object's record. Raises NotFound or Unavailable."""

        def write(connection: Connection) -> bytes:
            row = self._find(connection, kind, object_id, tenant, self._database.lock)
            place, text = _item(connection, row, item_id)
            connection.execute(
                "DELETE FROM object_items WHERE object = ? AND number = ?", (row.number, place)
            )
            num_bytes = _size(connection, row) - size_of([Item(item_id, text)])
            set_size(connection, row.number, tenant, num_bytes)
            return row.record.encode()

        return await self._write(write, tenant)

    async def renew(self, response_ids: Sequence[str], until_s: float) -> list[str]:
        """Lease responses, and their events, for longer; those that are not leased. Raises Unavailable."""
        query = (
            "UPDATE objects SET leased_until_s = ? WHERE kind IN ('response', 'events') AND id = ? "
            "AND leased_until_s > 0 RETURNING kind"
        )

        def write(connection: Connection) -> list[str]:
            return [
                response_id
                for response_id in response_ids
                if ("response",) not in connection.execute(query, (until_s, response_id)).fetchall()
            ]

        return await self._write(write, "")

    async def delete(self, kind: Kind, object_id: str, tenant: str) -> None:
        """Erase an object of this tenant. Raises NotFound or Unavailable."""

        def erase(connection: Connection) -> int:
            query = "DELETE FROM objects WHERE kind = ? AND id = ? AND tenant = ? AND expires_s > ?"
            return connection.execute(query, (kind, object_id, tenant, self.now_s())).rowcount

        if not is_id(object_id) or not await self._write(erase, tenant):
            raise _unknown(kind, object_id)

    async def page(
        self, kind: Kind, tenant: str, query: PageQuery, labels: Mapping[str, str]
    ) -> tuple[list[bytes], bool]:
        """Records of the tenant with these labels, and whether more follow. Raises InvalidRequest."""
        where = "kind = ? AND tenant = ? AND expires_s > ?"
        values: list[object] = [kind, tenant, self.now_s()]
        for name, value in labels.items():
            where += " AND number IN (SELECT object FROM object_labels WHERE tenant = ? AND label = ?)"
            values += [tenant, label_of(name, value)]
        return await self._read(
            lambda connection: _page(connection, "objects", "record", query, (where, values)), tenant
        )

    def too_large(self, param: str) -> InvalidRequest:
        """The error for what would be larger than an object may be."""
        return InvalidRequest(
            f"A stored object has at most {self.max_object_bytes} bytes and {self.policy.max_object_items} "
            "items, with what it continues: begin a new one, or send 'store': false.",
            param=param,
            code="object_too_large",
        )

    def _find(self, connection: Connection, kind: Kind, object_id: str, tenant: str, lock: str = "") -> _Row:
        where = "kind = ? AND id = ? AND tenant = ? AND expires_s > ?"
        query = f"SELECT number, record, leased_until_s FROM objects WHERE {where}{lock}"
        values = (kind, object_id, tenant, self.now_s())
        row = connection.execute(query, values).fetchone() if is_id(object_id) else None
        if row is None:
            raise _unknown(kind, object_id)
        return _Row(*row)

    def _grow(
        self,
        connection: Connection,
        row: _Row,
        named: Named,
        tenant: str,
        num_more: int,
        keep: Sequence[Named] = (),
    ) -> None:
        """Count more bytes for an object, make room for them and keep it as long as a new one."""
        self._room.make(connection, tenant, max(num_more, 0), [named, *keep], self.now_s())
        set_size(connection, row.number, tenant, _size(connection, row) + num_more)
        connection.execute(
            "UPDATE objects SET expires_s = ? WHERE number = ?", (self._expires_s(), row.number)
        )

    def _check_ids(self, connection: Connection, row: _Row, items: Sequence[Item]) -> None:
        query = "SELECT 1 FROM object_items WHERE object = ? AND id = ?"
        for item in items:
            if connection.execute(query, (row.number, item.id)).fetchone() is not None:
                raise refusals.wrong_value(
                    "items", "the conversation has an item with the id of one of these"
                )

    def _check_bounds(self, connection: Connection, row: _Row, items: Sequence[Item]) -> None:
        query = "SELECT COUNT(*) FROM object_items WHERE object = ?"
        count = connection.execute(query, (row.number,)).fetchone()[0] + len(items)
        if (
            _size(connection, row) + size_of(items) > self.max_object_bytes
            or count > self.policy.max_object_items
        ):
            raise self.too_large("items")

    def _expires_s(self) -> float:
        return self.now_s() + self.policy.ttl_s

    async def _read(self, work: Work[T], tenant: str) -> T:
        await self._expand()
        return await self._database.read(work, tenant)

    async def _write(self, work: Work[T], tenant: str) -> T:
        await self._expand()
        return await self._database.write(work, tenant)

    async def _expand(self) -> None:
        """Once: rows for the items of objects that an earlier version has stored."""
        if self._is_expanded:
            return
        async with self._expanding:
            lock = self._database.lock
            while not self._is_expanded:
                self._is_expanded = await self._database.write(lambda connection: expand(connection, lock))


def _stored(row: _Row) -> StoredObject:
    return StoredObject(row.record.encode(), row.leased_until_s)


def _size(connection: Connection, row: _Row) -> int:
    found = connection.execute(
        "SELECT num_bytes FROM object_sizes WHERE number = ?", (row.number,)
    ).fetchone()
    return int(found[0]) if found is not None else 0


def _item(connection: Connection, row: _Row, item_id: str) -> tuple[int, str]:
    """The place and text of an item. Raises NotFound."""
    query = "SELECT number, item FROM object_items WHERE object = ? AND id = ?"
    found: tuple[int, str] | None = connection.execute(query, (row.number, key_of(item_id))).fetchone()
    if found is None:
        raise NotFound("The conversation has no item with this id.", param="item_id", code="item_not_found")
    return found


def _page(
    connection: Connection,
    table: str,
    column: str,
    query: PageQuery,
    where: tuple[str, Sequence[object]],
) -> tuple[list[bytes], bool]:
    """Texts of a page, as far as MAX_PAGE_BYTES, and whether more follow. Raises InvalidRequest."""
    found: list[bytes] = []
    num_bytes = 0
    for (text,) in query.following(connection, table, column, *where):
        encoded = text.encode()
        num_bytes += len(encoded)
        if len(found) == query.limit or (found and num_bytes > MAX_PAGE_BYTES):
            return found, True
        found.append(encoded)
    return found, False


def _unknown(kind: Kind, object_id: str) -> NotFound:
    shown = object_id if is_id(object_id) else ""
    names = _NAMES[kind]
    return NotFound(
        f"{names.title} with id '{shown[:128]}' not found: it was not stored, has expired or was deleted.",
        param=names.param,
        code=names.code,
    )
