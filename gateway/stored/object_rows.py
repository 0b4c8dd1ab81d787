"""The rows of stored objects, on both databases: their tables, their items, and room for new ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gateway.database.database import Connection, Database
from policies.responses import ResponsesSection

Kind = Literal["response", "events", "conversation", "chat"]
Named = tuple[Kind, str]
"""An object by its id."""
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
CREATE INDEX IF NOT EXISTS objects_with_items ON objects (number) WHERE items <> '';
CREATE TABLE IF NOT EXISTS object_sizes (
    number BIGINT PRIMARY KEY REFERENCES objects (number) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    num_bytes BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS object_sizes_by_tenant ON object_sizes (tenant, number, num_bytes);
CREATE TABLE IF NOT EXISTS object_items (
    object BIGINT NOT NULL REFERENCES objects (number) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    id TEXT NOT NULL,
    item TEXT NOT NULL,
    PRIMARY KEY (object, number)
);
CREATE INDEX IF NOT EXISTS object_items_by_id ON object_items (object, id);
CREATE TABLE IF NOT EXISTS object_labels (
    object BIGINT NOT NULL REFERENCES objects (number) ON DELETE CASCADE,
    tenant TEXT NOT NULL,
    label TEXT NOT NULL,
    PRIMARY KEY (object, label)
);
CREATE INDEX IF NOT EXISTS object_labels_by_tenant ON object_labels (tenant, label, object);
"""
MIN_OBJECT_BYTES = 4096
"""What an object counts at least: a tiny one has rows, ids and indexes too."""
ITEM_BYTES = 128
"""What an item takes beside its text, about."""
ERASED_AT_ONCE = 256
"""Objects that one write erases at most, so that no request waits for a long clean-up."""
ERASED_BYTES = 8 << 20
"""Likewise, of those that have expired."""
EXPANDED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Item:
    """One item of an object."""

    id: str
    text: str  # JSON


def items_of(kind: Kind, object_id: str, items: Sequence[dict[str, Any]]) -> list[Item]:
    """The rows of JSON objects; messages of chats have no ids but their places."""
    return [
        Item(
            key_of(f"{object_id}-{place}" if kind == "chat" else item["id"]),
            msgspec.json.encode(item).decode(),
        )
        for place, item in enumerate(items)
    ]


def size_of(items: Sequence[Item]) -> int:
    """Bytes of items, about."""
    return sum(len(item.text) + ITEM_BYTES for item in items)


def key_of(item_id: str) -> str:
    """An id as databases can hold it: without NUL."""
    return item_id if is_id(item_id) else hashlib.sha256(item_id.encode("utf-8", "replace")).hexdigest()


def is_id(text: str) -> bool:
    """Whether it can be one of ours, and be shown: databases refuse some characters."""
    return text.isascii() and text.isprintable()


def label_of(name: str, value: str) -> str:
    """What a chat is found by, as an index can hold it."""
    return hashlib.sha256(msgspec.json.encode((name, value))).hexdigest()


class _Labels(msgspec.Struct, frozen=True):
    model: str = ""
    metadata: dict[str, str] = {}


_labels = msgspec.json.Decoder(_Labels).decode


def set_labels(connection: Connection, number: int, tenant: str, record: bytes) -> None:
    """Let the chat of this row be found by its model and metadata."""
    found = _labels(record)
    connection.execute("DELETE FROM object_labels WHERE object = ?", (number,))
    for name, value in {
        "model": found.model,
        **{f"metadata[{k}]": v for k, v in found.metadata.items()},
    }.items():
        connection.execute(
            "INSERT INTO object_labels VALUES (?, ?, ?)", (number, tenant, label_of(name, value))
        )


def add_items(connection: Connection, number: int, items: Sequence[Item]) -> None:
    """Append items to the object of this row."""
    query = "SELECT COALESCE(MAX(number), 0) FROM object_items WHERE object = ?"
    last = connection.execute(query, (number,)).fetchone()[0]
    for place, item in enumerate(items, last + 1):
        connection.execute(
            "INSERT INTO object_items VALUES (?, ?, ?, ?)", (number, place, item.id, item.text)
        )


def set_size(connection: Connection, number: int, tenant: str, num_bytes: int) -> None:
    """Count this much for the object of a row."""
    connection.execute(
        "INSERT INTO object_sizes VALUES (?, ?, ?) "
        "ON CONFLICT (number) DO UPDATE SET num_bytes = excluded.num_bytes",
        (number, tenant, max(num_bytes, MIN_OBJECT_BYTES)),
    )


def expand(connection: Connection, lock: str) -> bool:
    """Give some objects of an earlier version rows for their items; whether that was all."""
    query = f"SELECT number, kind, id, tenant, record, items FROM objects WHERE items <> '' LIMIT ?{lock}"
    rows = connection.execute(query, (EXPANDED_AT_ONCE,)).fetchall()
    for number, kind, object_id, tenant, record, text in rows:
        items = items_of(kind, object_id, msgspec.json.decode(text))
        add_items(connection, number, items)
        set_size(connection, number, tenant, len(record) + size_of(items))
        if kind == "chat":
            set_labels(connection, number, tenant, record.encode())
        connection.execute("UPDATE objects SET items = '' WHERE number = ?", (number,))
    return connection.execute("SELECT 1 FROM objects WHERE items <> '' LIMIT 1").fetchone() is None


class Room:
    """Erases what has expired, and the oldest where a bound is passed."""

    def __init__(self, database: Database[Any], policy: ResponsesSection) -> None:
        self._database = database
        self._policy = policy

    def make(
        self, connection: Connection, tenant: str, num_bytes: int, keep: Sequence[Named], now_s: float
    ) -> None:
        """Room for as many bytes more of a tenant, which are not written yet.

        Its own oldest make room first, then those of the tenant that stores most: one tenant's many objects
        do not displace the others'. What `keep` names stays.
        """
        self._erase(connection, "expires_s <= ?", (now_s,), ERASED_BYTES)
        kept = "".join(" AND NOT (kind = ? AND id = ?)" for _ in keep)
        names = [part for named in keep for part in named]
        too_many = self._used(connection, tenant) + num_bytes - self._policy.max_bytes_per_tenant
        while too_many > 0:
            freed = self._erase(connection, f"objects.tenant = ?{kept}", (tenant, *names), too_many)
            if not freed:
                break
            too_many -= freed
        most = self._policy.max_bytes
        while self._database.used_bytes(connection) + num_bytes > most:
            too_many = max(self._database.used_bytes(connection) + num_bytes - most, most // 128)
            if not self._erase_from_largest(connection, kept, names, too_many):
                break

    def _erase_from_largest(
        self, connection: Connection, kept: str, names: Sequence[str], num_bytes: int
    ) -> int:
        query = "SELECT tenant FROM object_sizes GROUP BY tenant ORDER BY SUM(num_bytes) DESC LIMIT 1"
        largest = connection.execute(query).fetchone()
        if largest is None:
            return 0
        freed = self._erase(connection, f"objects.tenant = ?{kept}", (*largest, *names), num_bytes)
        return freed or self._erase(connection, f"0 = 0{kept}", names, num_bytes)

    def _used(self, connection: Connection, tenant: str) -> int:
        query = "SELECT COALESCE(SUM(num_bytes), 0) FROM object_sizes WHERE tenant = ?"
        return int(connection.execute(query, (tenant,)).fetchone()[0])

    def _erase(self, connection: Connection, where: str, values: Sequence[object], num_bytes: int) -> int:
        """Erase the oldest, of about as many bytes; how many there were.

        What another transaction changes now is no old one, nor waited for.
        """
        lock = self._database.lock_free_rows
        chosen = connection.execute(
            f"SELECT number FROM objects WHERE {where} ORDER BY expires_s LIMIT ?{lock}",
            (*values, ERASED_AT_ONCE),
        ).fetchall()
        freed = 0
        for (number,) in chosen:
            size = "SELECT num_bytes FROM object_sizes WHERE number = ?"
            freed += (connection.execute(size, (number,)).fetchone() or (MIN_OBJECT_BYTES,))[0]
            connection.execute("DELETE FROM objects WHERE number = ?", (number,))
            if freed >= num_bytes:
                break
        return freed
