"""Stored responses, per tenant, in a database that all workers share."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.database import Database
from gateway.errors import NotFound
from policies.responses import ResponsesSection

ERASED_AT_ONCE = 256
"""Rows that one write erases at most, so that no request waits for a long clean-up."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    expires_s REAL NOT NULL,
    response BLOB NOT NULL,
    items BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_expiry ON responses (expires_s);
"""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response and what it was asked."""

    response: bytes  # JSON
    items: list[dict[str, Any]]  # the input, items of the responses that it continues included


class ResponseStore:
    """The responses of all tenants; every method takes the tenant that may see them."""

    def __init__(self, folder: str, policy: ResponsesSection, now_s: Callable[[], float] = time.time) -> None:
        """`folder`: where the file is, or will be; "": in memory, for as long as this worker lives."""
        remedy = " With 'store': false a request needs none."
        self._database = Database(folder, "responses", _SCHEMA, remedy)
        self._policy = policy
        self._now_s = now_s

    @property
    def is_enabled(self) -> bool:
        """False when the policies say that nothing is stored."""
        return self._policy.store

    async def start(self) -> None:
        """Nothing to start: the file is opened on first use."""

    async def close(self) -> None:
        """Close the file."""
        await self._database.close()

    async def put(self, response_id: str, tenant: str, stored: StoredResponse) -> None:
        """Store a response. Raises Unavailable."""
        items = msgspec.json.encode(stored.items)

        def write(connection: sqlite3.Connection) -> None:
            self._erase_old(connection, len(stored.response) + len(items))
            expires_s = self._now_s() + self._policy.ttl_s
            row = (response_id, tenant, expires_s, stored.response, items)
            connection.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?)", row)

        await self._database.write(write)

    async def get(self, response_id: str, tenant: str) -> StoredResponse:
        """A response of this tenant. Raises NotFound or Unavailable."""

        def read(connection: sqlite3.Connection) -> tuple[bytes, bytes] | None:
            query = "SELECT response, items FROM responses WHERE id = ? AND tenant = ? AND expires_s > ?"
            found: tuple[bytes, bytes] | None = connection.execute(
                query, (response_id, tenant, self._now_s())
            ).fetchone()
            return found

        found = await self._database.read(read)
        if found is None:
            raise _unknown(response_id)
        return StoredResponse(found[0], msgspec.json.decode(found[1]))

    async def delete(self, response_id: str, tenant: str) -> None:
        """Erase a response of this tenant. Raises NotFound or Unavailable."""

        def erase(connection: sqlite3.Connection) -> int:
            query = "DELETE FROM responses WHERE id = ? AND tenant = ? AND expires_s > ?"
            return connection.execute(query, (response_id, tenant, self._now_s())).rowcount

        if not await self._database.write(erase):
            raise _unknown(response_id)

    def _erase_old(self, connection: sqlite3.Connection, num_bytes: int) -> None:
        """Erase what has expired, and the oldest while there is no room for `num_bytes` more."""
        oldest = "DELETE FROM responses WHERE id IN (SELECT id FROM responses {} ORDER BY expires_s LIMIT ?)"
        expired = oldest.format("WHERE expires_s <= ?")
        connection.execute(expired, (self._now_s(), ERASED_AT_ONCE))
        while _used_bytes(connection) + num_bytes > self._policy.max_bytes:
            if not connection.execute(oldest.format(""), (ERASED_AT_ONCE,)).rowcount:
                return


def _used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of the pages in use."""
    pages = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")]
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    return int((pages[0] - pages[1]) * page_size)


def _unknown(response_id: str) -> NotFound:
    shown = response_id if response_id.isascii() and response_id.isprintable() else ""
    return NotFound(
        f"Response with id '{shown[:128]}' not found: it was not stored, has expired or was deleted.",
        param="response_id",
        code="response_not_found",
    )
