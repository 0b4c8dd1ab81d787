"""What tenants store and find again by its id: responses, conversations and chat completions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from gateway.database.database import Connection, Database
from gateway.errors import NotFound
from gateway.requests.pages import PageQuery
from policies.responses import ResponsesSection

Kind = Literal["response", "events", "conversation", "chat"]


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
SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    number {serial},
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    expires_s DOUBLE PRECISION NOT NULL,
    leased_until_s DOUBLE PRECISION NOT NULL,
    record TEXT NOT NULL,
    items TEXT NOT NULL,
    UNIQUE (kind, id)
);
CREATE INDEX IF NOT EXISTS objects_by_expiry ON objects (expires_s);
CREATE INDEX IF NOT EXISTS objects_by_tenant ON objects (tenant, kind, number);
CREATE INDEX IF NOT EXISTS objects_by_tenant_and_expiry ON objects (tenant, expires_s);
CREATE TABLE IF NOT EXISTS object_sizes (
    number BIGINT PRIMARY KEY REFERENCES objects (number) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    num_bytes BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS object_sizes_by_tenant ON object_sizes (tenant, number, num_bytes);
"""
ROW_BYTES = 256
"""What an object takes beside its texts, about: its ids and indexes."""
_SET_SIZE = """
INSERT INTO object_sizes (number, tenant, num_bytes)
SELECT number, tenant, CAST(? AS BIGINT) FROM objects WHERE kind = ? AND id = ?
ON CONFLICT (number) DO UPDATE SET num_bytes = excluded.num_bytes
"""
_TENANT_BYTES = """
SELECT COALESCE(SUM(num_bytes), 0) FROM object_sizes
WHERE tenant = ? AND number NOT IN (SELECT number FROM objects WHERE kind = ? AND id = ?)
"""
ERASED_AT_ONCE = 256
"""Rows that one write erases at most, so that no request waits for a long clean-up."""
STORE_REMEDY = " With 'store': false a request needs none."


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object and what it was made from."""

    record: bytes  # JSON, as the API shows it
    items: list[dict[str, Any]]  # a response's input with what it continues; a chat's messages
    leased_until_s: float = 0.0  # a process generates it and renews this; 0: none does


class ObjectStore:
    """The objects of all tenants; every method takes the tenant that may see them."""

    def __init__(
        self, database: Database[Any], policy: ResponsesSection, now_s: Callable[[], float] = time.time
    ) -> None:
        """`database` has SCHEMA."""
        self._database = database
        self.policy = policy
        self.now_s = now_s

    @property
    def is_enabled(self) -> bool:
        """False when the policies say that nothing is stored."""
        return self.policy.store

    async def start(self) -> None:
        """Nothing to start: the database is opened on first use."""

    async def close(self) -> None:
        """Close the database."""
        await self._database.close()

    async def put(self, kind: Kind, object_id: str, tenant: str, stored: StoredObject) -> None:
        """Store an object. Raises Unavailable."""
        record, items, num_bytes = _texts(stored)

        def write(connection: Connection) -> None:
            self._make_room(connection, kind, object_id, tenant, num_bytes)
            columns = "kind, id, tenant, expires_s, leased_until_s, record, items"
            row = (kind, object_id, tenant, self._expires_s(), stored.leased_until_s, record, items)
            connection.execute(f"INSERT INTO objects ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.execute(_SET_SIZE, (num_bytes, kind, object_id))

        await self._database.write(write)

    async def get(self, kind: Kind, object_id: str, tenant: str) -> StoredObject:
        """An object of this tenant. Raises NotFound or Unavailable."""
        return await self._database.read(lambda connection: self._find(connection, kind, object_id, tenant))

    async def change(
        self, kind: Kind, object_id: str, tenant: str, change: Callable[[StoredObject], StoredObject]
    ) -> StoredObject:
        """Replace an object by what `change` makes of it, and keep that as long as a new one.

        Raises NotFound, Unavailable, or what `change` raises, which runs in a thread.
        """

        def write(connection: Connection) -> StoredObject:
            changed = change(self._find(connection, kind, object_id, tenant, self._database.lock))
            record, items, num_bytes = _texts(changed)
            self._make_room(connection, kind, object_id, tenant, num_bytes)
            columns = "expires_s = ?, leased_until_s = ?, record = ?, items = ?"
            row = (self._expires_s(), changed.leased_until_s, record, items, kind, object_id)
            connection.execute(f"UPDATE objects SET {columns} WHERE kind = ? AND id = ?", row)
            connection.execute(_SET_SIZE, (num_bytes, kind, object_id))
            return changed

        return await self._database.write(write)

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

        return await self._database.write(write)

    async def delete(self, kind: Kind, object_id: str, tenant: str) -> None:
        """Erase an object of this tenant. Raises NotFound or Unavailable."""

        def erase(connection: Connection) -> int:
            query = "DELETE FROM objects WHERE kind = ? AND id = ? AND tenant = ? AND expires_s > ?"
            return connection.execute(query, (kind, object_id, tenant, self.now_s())).rowcount

        if not _is_id(object_id) or not await self._database.write(erase):
            raise _unknown(kind, object_id)

    async def page(
        self, kind: Kind, tenant: str, query: PageQuery, fits: Callable[[bytes], bool]
    ) -> tuple[list[bytes], bool]:
        """Records of the tenant that `fits` takes, and whether more follow. Raises InvalidRequest."""
        where = "kind = ? AND tenant = ? AND expires_s > ?"
        values = (kind, tenant, self.now_s())

        def read(connection: Connection) -> tuple[list[bytes], bool]:
            found: list[bytes] = []
            for (record,) in query.following(connection, "objects", "record", where, values):
                if fits(encoded := record.encode()):
                    found.append(encoded)
                    if len(found) > query.limit:
                        break
            return found[: query.limit], len(found) > query.limit

        return await self._database.read(read)

    def _find(
        self, connection: Connection, kind: Kind, object_id: str, tenant: str, lock: str = ""
    ) -> StoredObject:
        where = "kind = ? AND id = ? AND tenant = ? AND expires_s > ?"
        query = f"SELECT record, items, leased_until_s FROM objects WHERE {where}{lock}"
        values = (kind, object_id, tenant, self.now_s())
        row = connection.execute(query, values).fetchone() if _is_id(object_id) else None
        if row is None:
            raise _unknown(kind, object_id)
        return StoredObject(row[0].encode(), msgspec.json.decode(row[1]), row[2])

    def _expires_s(self) -> float:
        return self.now_s() + self.policy.ttl_s

    def _make_room(
        self, connection: Connection, kind: Kind, object_id: str, tenant: str, num_bytes: int
    ) -> None:
        """Erase what has expired, and no more of the oldest than `num_bytes` more of this object need.

        The tenant's own make room first, so that one tenant's many objects do not displace the others'.
        """

        def of_tenant() -> int:
            return int(connection.execute(_TENANT_BYTES, (tenant, kind, object_id)).fetchone()[0]) + num_bytes

        def of_all() -> int:
            return self._database.used_bytes(connection) + num_bytes

        self._erase_oldest(connection, "expires_s <= ?", (self.now_s(),), ERASED_AT_ONCE)
        others, values = "NOT (kind = ? AND id = ?)", (kind, object_id)
        bounds = (
            (of_tenant, self.policy.max_bytes_per_tenant, f"tenant = ? AND {others}", (tenant, *values)),
            (of_all, self.policy.max_bytes, others, values),
        )
        for used_bytes, max_bytes, where, of_where in bounds:
            num_rows = 1
            while used_bytes() > max_bytes and self._erase_oldest(connection, where, of_where, num_rows):
                num_rows = min(2 * num_rows, ERASED_AT_ONCE)

    def _erase_oldest(
        self, connection: Connection, where: str, values: tuple[object, ...], num_rows: int
    ) -> int:
        """How many were erased. What another transaction changes now is no old one, nor waited for."""
        chosen = f"SELECT number FROM objects WHERE {where} ORDER BY expires_s LIMIT ?"
        query = f"""
            WITH chosen AS ({chosen}{self._database.lock_free_rows})
            DELETE FROM objects WHERE number IN (SELECT number FROM chosen)"""
        return connection.execute(query, (*values, num_rows)).rowcount


def _texts(stored: StoredObject) -> tuple[str, str, int]:
    """The texts of its row, and the bytes of that."""
    items = msgspec.json.encode(stored.items)
    return stored.record.decode(), items.decode(), len(stored.record) + len(items) + ROW_BYTES


def _is_id(text: str) -> bool:
    """Whether it can be one, and be shown: databases refuse some characters."""
    return text.isascii() and text.isprintable()


def _unknown(kind: Kind, object_id: str) -> NotFound:
    shown = object_id if _is_id(object_id) else ""
    names = _NAMES[kind]
    return NotFound(
        f"{names.title} with id '{shown[:128]}' not found: it was not stored, has expired or was deleted.",
        param=names.param,
        code=names.code,
    )
