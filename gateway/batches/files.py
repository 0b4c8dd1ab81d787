"""Stored files, per tenant: their content in a folder, the rest in the database.

A file is complete before its row is written: what a crash leaves without one is erased later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from gateway.batches.records import StoredFile
from gateway.database.database import Connection, Database
from gateway.errors import ApiError, InvalidRequest, NotFound, Unavailable
from gateway.requests.pages import PageQuery
from policies.batches import BatchesSection

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    purpose TEXT NOT NULL,
    filename TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS files_by_tenant ON files (tenant, number);
CREATE INDEX IF NOT EXISTS file_sizes_by_tenant ON files (tenant, expires_at, bytes);
"""
ORPHANED_AFTER_S = 24 * 3600
"""A file without a row is erased at this age: a younger one may still be written."""
MIN_BYTES = 4096
"""What a file counts at least: an empty one takes room too."""
_COLUMNS = "id, purpose, filename, bytes, created_at, expires_at"


class FileStore:
    """The files of all tenants; every method takes the tenant that may see them."""

    def __init__(self, database: Database[Any], folder: str, now_s: Callable[[], float] = time.time) -> None:
        """`folder`: of the content; "": nothing can be stored."""
        self._database = database
        self._folder = Path(folder, "files") if folder else None
        self._now_s = now_s
        self._arriving: dict[str, list[int]] = {}  # by tenant: bytes of uploads that this worker receives

    def path(self, file_id: str) -> Path:
        """Where the content of a file is. Raises Unavailable without a folder."""
        if self._folder is None:
            raise Unavailable(
                "This server stores no files: it has no folder for them. Set PENSTOCK_DATA_DIR to one.",
                code="no_data_folder",
            )
        return self._folder / file_id

    @contextlib.asynccontextmanager
    async def arriving(self, tenant: str, num_bytes: int, policy: BatchesSection) -> AsyncIterator[None]:
        """While an upload of about this size arrives.

        Raises InvalidRequest where the tenant's files, with other uploads that arrive, leave no room for it.
        """
        self.path("")
        others = self._arriving.setdefault(tenant, [])
        coming = list(others)
        others.append(max(num_bytes, MIN_BYTES))
        try:
            await self._database.read(
                lambda connection: self.check_room(connection, tenant, 1, policy, coming), tenant
            )
            yield
        finally:
            others.remove(max(num_bytes, MIN_BYTES))
            if not others:
                self._arriving.pop(tenant, None)

    def check_room(
        self,
        connection: Connection,
        tenant: str,
        num_bytes: int,
        policy: BatchesSection,
        coming: Sequence[int] = (),
    ) -> None:
        """Raise InvalidRequest unless one more file has room; `coming`: the sizes of others to come."""
        query = (
            "SELECT count(*), coalesce(sum(max(bytes, ?)), 0) FROM files WHERE tenant = ? AND expires_at > ?"
        )
        count, used = connection.execute(query, (MIN_BYTES, tenant, self._now_s())).fetchone()
        count, used = count + len(coming), used + sum(coming)
        if count >= policy.max_tenant_files:
            has, limit = f"There are {count} of them", f"{policy.max_tenant_files} files"
        elif used + num_bytes > policy.max_tenant_bytes:
            has, limit = f"They have {used} bytes", f"{policy.max_tenant_bytes} bytes"
        else:
            return
        raise InvalidRequest(
            f"Your files leave no room for another. {has}; the limit is {limit}, each counted as at least "
            f"{MIN_BYTES}: delete some first.",
            param="file",
            code="storage_limit_exceeded",
        )

    async def add(
        self,
        tenant: str,
        purpose: str,
        filename: str,
        content: IO[bytes],
        ttl_s: int,
        policy: BatchesSection,
    ) -> StoredFile:
        """Store a copy of `content`, from where it is read next. Raises InvalidRequest or Unavailable."""
        file_id = "file-" + secrets.token_hex(12)
        path = self.path(file_id)
        try:
            num_bytes = await asyncio.to_thread(write_file, path, iter(partial(content.read, 1 << 20), b""))
        except OSError as error:
            raise _cannot_write(error) from None

        def write(connection: Connection) -> StoredFile:
            self.check_room(connection, tenant, max(num_bytes, MIN_BYTES), policy)
            return self.register(connection, tenant, file_id, purpose, filename, num_bytes, ttl_s)

        try:
            return await self._database.write(write, tenant)
        except ApiError:
            await asyncio.to_thread(path.unlink, missing_ok=True)
            raise

    def register(
        self,
        connection: Connection,
        tenant: str,
        file_id: str,
        purpose: str,
        filename: str,
        num_bytes: int,
        ttl_s: int,
    ) -> StoredFile:
        """Write the row of a file whose content is complete, inside a transaction."""
        now = int(self._now_s())
        file = StoredFile(
            id=file_id,
            purpose=purpose,
            filename=filename,
            bytes=num_bytes,
            created_at=now,
            expires_at=now + ttl_s,
        )
        connection.execute(
            f"INSERT INTO files (tenant, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (tenant, file_id, purpose, filename, num_bytes, now, now + ttl_s),
        )
        return file

    async def get(self, file_id: str, tenant: str) -> StoredFile:
        """A file of this tenant. Raises NotFound or Unavailable."""
        query = f"SELECT {_COLUMNS} FROM files WHERE id = ? AND tenant = ? AND expires_at > ?"
        values = (file_id, tenant, self._now_s())
        row = await self._database.read(
            lambda connection: connection.execute(query, values).fetchone(), tenant
        )
        if row is None:
            raise _unknown(file_id)
        return _file(row)

    async def page(self, tenant: str, purpose: str, query: PageQuery) -> tuple[list[StoredFile], bool]:
        """Some of the tenant's files, of all purposes or one, and whether more follow."""
        where, values = "tenant = ? AND expires_at > ?", [tenant, self._now_s()]
        if purpose:
            where, values = f"{where} AND purpose = ?", [*values, purpose]
        rows, has_more = await self._database.read(
            lambda connection: query.rows(connection, "files", _COLUMNS, where, values), tenant
        )
        return [_file(row) for row in rows], has_more

    async def delete(self, file_id: str, tenant: str) -> None:
        """Erase a file. Raises NotFound, or InvalidRequest for the input of a batch that has not ended."""

        def erase(connection: Connection) -> None:
            found = "SELECT 1 FROM files WHERE id = ? AND tenant = ? AND expires_at > ?"
            if connection.execute(found, (file_id, tenant, self._now_s())).fetchone() is None:
                raise _unknown(file_id)
            used = "SELECT id FROM batches WHERE is_open AND input_file_id = ?"
            if (batch := connection.execute(used, (file_id,)).fetchone()) is not None:
                raise InvalidRequest(
                    f"The batch {batch[0]!r} reads this file: cancel it first, or wait for its end.",
                    code="file_in_use",
                    status=409,
                )
            connection.execute("DELETE FROM files WHERE id = ?", (file_id,))

        await self._database.write(erase, tenant)
        await asyncio.to_thread(self.path(file_id).unlink, missing_ok=True)

    async def erase_old(self) -> None:
        """Erase files that have expired and that no open batch reads, and content without a row."""

        def erase(connection: Connection) -> tuple[set[str], set[str]]:
            old = connection.execute(
                "DELETE FROM files WHERE expires_at <= ? AND id NOT IN "
                "(SELECT input_file_id FROM batches WHERE is_open) RETURNING id",
                (self._now_s(),),
            ).fetchall()
            kept = connection.execute("SELECT id FROM files").fetchall()
            return {file_id for (file_id,) in old}, {file_id for (file_id,) in kept}

        folder = self._folder
        if folder is not None and folder.is_dir():
            old, kept = await self._database.write(erase)
            await asyncio.to_thread(_erase, folder, old, kept, self._now_s() - ORPHANED_AFTER_S)


class PartFile:
    """A file that is being written: complete or absent after a crash. Every method raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._part = path.with_name(path.name + ".part")
        self._file = open(os.open(self._part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb")  # noqa: SIM115

    def write(self, pieces: Iterable[bytes]) -> None:
        """Add to it."""
        self._file.writelines(pieces)

    def finish(self) -> int:
        """Give it its name; returns its size."""
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
            num_bytes = file.tell()
        self._part.replace(self._path)
        return num_bytes

    def discard(self) -> None:
        """Erase what was written, unless it is finished."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def write_file(path: Path, pieces: Iterable[bytes]) -> int:
    """Write a whole PartFile; returns its size. Raises OSError."""
    part = PartFile(path)
    try:
        part.write(pieces)
        return part.finish()
    finally:
        part.discard()


def _erase(folder: Path, old: set[str], kept: set[str], orphans_before_s: float) -> None:
    for path in folder.iterdir():
        if path.name in old or (path.name not in kept and path.stat().st_mtime < orphans_before_s):
            path.unlink(missing_ok=True)


def _file(row: tuple[str, str, str, int, int, int]) -> StoredFile:
    file_id, purpose, filename, num_bytes, created_at, expires_at = row
    return StoredFile(
        id=file_id,
        purpose=purpose,
        filename=filename,
        bytes=num_bytes,
        created_at=created_at,
        expires_at=expires_at,
    )


def _cannot_write(error: OSError) -> Unavailable:
    return Unavailable(f"The file cannot be stored: {error.strerror}.", code="file_store_unavailable")


def _unknown(file_id: str) -> NotFound:
    shown = file_id[:64] if file_id.isascii() and file_id.isprintable() else ""
    return NotFound(
        f"No such File object: {shown!r}: it has expired, was deleted or never existed.",
        param="id",
        code="file_not_found",
    )
