"""Stored batches, per tenant, and the answered lines of those that have not ended."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from gateway.batches.files import FileStore
from gateway.batches.records import (
    COMPLETION_WINDOWS_S,
    Batch,
    BatchUsage,
    Counts,
    EndStatus,
    Fault,
    Faults,
    StoredBatch,
)
from gateway.database.database import Connection
from gateway.database.sqlite import SqliteDatabase
from gateway.errors import InvalidRequest, NotFound, RateLimited, retry_after
from gateway.requests.pages import PageQuery
from policies.batches import BatchesSection

SCHEMA = """
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    input_file_id TEXT NOT NULL,
    output_ttl_s INTEGER NOT NULL,
    is_open INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS batches_by_tenant ON batches (tenant, number);
CREATE INDEX IF NOT EXISTS open_batches ON batches (input_file_id) WHERE is_open;
CREATE INDEX IF NOT EXISTS batches_by_end ON batches (is_open, number, tenant);
CREATE INDEX IF NOT EXISTS batches_by_tenant_and_end ON batches (tenant, is_open, number);
CREATE TABLE IF NOT EXISTS batch_lines (
    batch INTEGER NOT NULL REFERENCES batches (number) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    is_error INTEGER NOT NULL,
    line BLOB NOT NULL,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
"""
MAX_ENDED = 10_000
"""Ended batches kept of a tenant; its oldest are erased first."""
ERASED_AT_ONCE = 256
"""Rows that one write erases at most: no other write waits for a long clean-up."""
RETRY_S = 10.0
"""`retry-after` of a tenant with too many open batches."""
LINES_AT_ONCE = 64
"""Answers that are read at once."""
_COLUMNS = "number, tenant, output_ttl_s, record"
_ADD = """
INSERT INTO batches (id, tenant, input_file_id, output_ttl_s, is_open, record) VALUES (?, ?, ?, ?, ?, ?)
"""
_ERASE_ENDED = """
DELETE FROM batches WHERE number IN (
    SELECT number FROM batches WHERE tenant = ? AND is_open = 0 ORDER BY number DESC LIMIT ? OFFSET ?
)
"""
_ERASE_OLD = """
DELETE FROM batches WHERE number IN (
    SELECT number FROM batches WHERE is_open = 0 ORDER BY number LIMIT ?
) AND json_extract(record, '$.expires_at') < ?
"""
_ERASE_LINES = """
DELETE FROM batch_lines WHERE batch = ? AND number IN (
    SELECT number FROM batch_lines WHERE batch = ? LIMIT ?
)
"""
_LEFT = """
SELECT number FROM batches WHERE is_open = 0
AND EXISTS (SELECT 1 FROM batch_lines WHERE batch = batches.number)
"""
_decode = msgspec.json.Decoder(Batch).decode
_encode = msgspec.json.encode


class BatchStore:
    """The batches of all tenants. Methods for clients take the tenant, those for the runner a batch."""

    def __init__(
        self, database: SqliteDatabase, files: FileStore, now_s: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._files = files
        self._now_s = now_s

    async def add(
        self,
        tenant: str,
        endpoint: str,
        input_file_id: str,
        *,
        window: str,
        metadata: dict[str, str] | None,
        output_ttl_s: int,
        policy: BatchesSection,
        num_lines: int = 0,
    ) -> Batch:
        """A new batch; `num_lines`: of its file, where that is known already.

        Raises NotFound without that file, InvalidRequest for one of another purpose or without room for its
        output, RateLimited where the tenant has too many that have not ended.
        """
        file = await self._files.get(input_file_id, tenant)
        if file.purpose != "batch":
            raise InvalidRequest(
                f"The file {file.id!r} has the purpose {file.purpose!r}: upload it with 'batch'.",
                param="input_file_id",
                code="invalid_value",
            )
        now = int(self._now_s())
        batch = Batch(
            id="batch_" + secrets.token_hex(12),
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_at=now,
            expires_at=now + COMPLETION_WINDOWS_S[window],
            completion_window=window,
            metadata=metadata,
            request_counts=Counts(total=num_lines),
        )
        row = (batch.id, tenant, input_file_id, output_ttl_s, True, _encode(batch))

        def write(connection: Connection) -> None:
            _check_open(connection, tenant, policy.max_open_batches)
            self._files.check_room(connection, tenant, 1, policy)
            connection.execute(_ERASE_ENDED, (tenant, ERASED_AT_ONCE, MAX_ENDED - 1))
            connection.execute(_ADD, row)

        await self._database.write(write, tenant)
        return batch

    async def get(self, batch_id: str, tenant: str) -> Batch:
        """A batch of this tenant. Raises NotFound."""
        found = await self._database.read(lambda connection: _find(connection, batch_id, tenant), tenant)
        return found.batch

    async def page(self, tenant: str, query: PageQuery, endpoint: str = "") -> tuple[list[Batch], bool]:
        """Some of the tenant's batches, of all endpoints or one, and whether more follow."""
        where, values = "tenant = ?", [tenant]
        if endpoint:
            where, values = f"{where} AND json_extract(record, '$.endpoint') = ?", [tenant, endpoint]
        rows, has_more = await self._database.read(
            lambda connection: query.rows(connection, "batches", "record", where, values), tenant
        )
        return [_decode(record) for (record,) in rows], has_more

    async def delete(self, batch_id: str, tenant: str) -> None:
        """Erase a batch that has ended. Raises NotFound."""

        def erase(connection: Connection) -> None:
            stored = _find(connection, batch_id, tenant)
            connection.execute("DELETE FROM batches WHERE number = ? AND is_open = 0", (stored.number,))

        await self._database.write(erase, tenant)

    async def cancel(self, batch_id: str, tenant: str) -> Batch:
        """Answer no more lines. Raises NotFound, or InvalidRequest for one that has ended."""

        def change(connection: Connection) -> Batch:
            stored = _find(connection, batch_id, tenant)
            batch = stored.batch
            if batch.status == "cancelling":
                return batch
            if batch.status not in ("validating", "in_progress"):
                raise InvalidRequest(
                    f"The batch {batch.id!r} cannot be cancelled: its status is {batch.status!r}.",
                    code="batch_not_cancellable",
                    status=409,
                )
            return self._put(connection, stored, status="cancelling", cancelling_at=int(self._now_s()))

        return await self._database.write(change, tenant)

    def exists(self) -> bool:
        """False before the first file or batch is stored."""
        return self._database.exists()

    async def at(self, number: int) -> StoredBatch:
        """The batch of this number."""
        return await self._database.read(lambda connection: _at(connection, number))

    async def open_batches(self) -> list[tuple[int, str]]:
        """The numbers and tenants of all that have not ended, the oldest first."""
        query = "SELECT number, tenant FROM batches WHERE is_open = 1 ORDER BY number"
        return await self._database.read(lambda connection: connection.execute(query).fetchall())

    async def begin(self, number: int, num_lines: int) -> StoredBatch:
        """The input file is valid: its lines are asked from now on."""
        now = int(self._now_s())
        counts = Counts(total=num_lines)
        return await self._change(
            number, "validating", "in_progress", in_progress_at=now, request_counts=counts
        )

    async def fail(self, number: int, faults: list[Fault]) -> StoredBatch:
        """The input file is not valid."""
        now = int(self._now_s())
        return await self._change(number, "validating", "failed", failed_at=now, errors=Faults(faults))

    async def record(
        self, number: int, line_number: int, line: bytes, usage: BatchUsage, *, is_error: bool
    ) -> StoredBatch:
        """Keep a line's answer, unless it has one. Returns the batch as it is now."""

        def write(connection: Connection) -> StoredBatch:
            stored = _at(connection, number)
            query = "INSERT OR IGNORE INTO batch_lines VALUES (?, ?, ?, ?)"
            if not connection.execute(query, (number, line_number, is_error, line)).rowcount:
                return stored
            batch, counts = stored.batch, stored.batch.request_counts
            counts = Counts(counts.total, counts.completed + (not is_error), counts.failed + is_error)
            self._put(connection, stored, request_counts=counts, usage=batch.usage.plus(usage))
            return _at(connection, number)

        return await self._database.write(write)

    async def answered(self, number: int) -> set[int]:
        """The numbers of the lines that have an answer."""
        query = "SELECT number FROM batch_lines WHERE batch = ?"
        rows = await self._database.read(lambda connection: connection.execute(query, (number,)).fetchall())
        return {line_number for (line_number,) in rows}

    async def finalize(self, number: int) -> StoredBatch:
        """All lines are answered that will be: output files are written next."""
        return await self._change(number, "in_progress", "finalizing", finalizing_at=int(self._now_s()))

    async def lines(self, number: int, after: int, *, is_error: bool) -> list[tuple[int, bytes]]:
        """Some answers, or errors, with the numbers of their lines, from the first after a line on."""
        query = (
            "SELECT number, line FROM batch_lines WHERE batch = ? AND number > ? AND is_error = ? "
            "ORDER BY number LIMIT ?"
        )
        values = (number, after, is_error, LINES_AT_ONCE)
        return await self._database.read(lambda connection: connection.execute(query, values).fetchall())

    async def end(self, number: int, status: EndStatus, sizes: dict[str, int]) -> StoredBatch:
        """Its files are written: `sizes` has the bytes of each by its id."""

        def write(connection: Connection) -> StoredBatch:
            stored = _at(connection, number)
            batch = stored.batch
            for file_id, num_bytes in sizes.items():
                name = f"{batch.id}_{'output' if file_id == batch.output_id else 'error'}.jsonl"
                self._files.register(
                    connection, stored.tenant, file_id, "batch_output", name, num_bytes, stored.output_ttl_s
                )
            output_id = batch.output_id if batch.output_id in sizes else None
            error_id = batch.error_id if batch.error_id in sizes else None
            now = {f"{status}_at": int(self._now_s())}
            self._put(
                connection, stored, status=status, output_file_id=output_id, error_file_id=error_id, **now
            )
            return _at(connection, number)

        ended = await self._database.write(write)
        await self._erase_lines(number)
        return ended

    async def erase_old(self, ttl_s: int) -> None:
        """Erase batches that ended more than `ttl_s` ago, and answers that a killed process has left."""
        values = (ERASED_AT_ONCE, self._now_s() - ttl_s)
        await self._database.write(lambda connection: connection.execute(_ERASE_OLD, values).rowcount)
        left = await self._database.read(lambda connection: connection.execute(_LEFT).fetchall())
        for (number,) in left:
            await self._erase_lines(number)

    async def _erase_lines(self, number: int) -> None:
        values = (number, number, ERASED_AT_ONCE)
        while await self._database.write(
            lambda connection: connection.execute(_ERASE_LINES, values).rowcount
        ):
            pass

    async def _change(self, number: int, before: str, status: str, **fields: object) -> StoredBatch:
        """Change the status, unless a client has cancelled the batch meanwhile."""

        def write(connection: Connection) -> StoredBatch:
            stored = _at(connection, number)
            if stored.batch.status == before:
                self._put(connection, stored, status=status, **fields)
            return _at(connection, number)

        return await self._database.write(write)

    def _put(self, connection: Connection, stored: StoredBatch, **fields: object) -> Batch:
        batch = msgspec.structs.replace(stored.batch, **fields)
        query = "UPDATE batches SET is_open = ?, record = ? WHERE number = ?"
        connection.execute(query, (batch.is_open, _encode(batch), stored.number))
        return batch


def _check_open(connection: Connection, tenant: str, most: int) -> None:
    query = "SELECT count(*) FROM batches WHERE tenant = ? AND is_open = 1"
    if connection.execute(query, (tenant,)).fetchone()[0] >= most:
        raise RateLimited(
            f"You have {most} batches that have not ended, which is the limit: wait for one, or cancel one.",
            code="batch_limit_exceeded",
            headers=retry_after(RETRY_S),
        )


def _at(connection: Connection, number: int) -> StoredBatch:
    query = f"SELECT {_COLUMNS} FROM batches WHERE number = ?"
    return _stored(connection.execute(query, (number,)).fetchone())


def _find(connection: Connection, batch_id: str, tenant: str) -> StoredBatch:
    query = f"SELECT {_COLUMNS} FROM batches WHERE id = ? AND tenant = ?"
    row = connection.execute(query, (batch_id, tenant)).fetchone()
    if row is None:
        shown = batch_id[:64] if batch_id.isascii() and batch_id.isprintable() else ""
        raise NotFound(f"No batch found with id {shown!r}.", param="id", code="batch_not_found")
    return _stored(row)


def _stored(row: tuple[int, str, int, bytes]) -> StoredBatch:
    number, tenant, output_ttl_s, record = row
    return StoredBatch(number, tenant, output_ttl_s, _decode(record))
