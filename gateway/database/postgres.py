"""A PostgreSQL server that all replicas of the gateway share. Needs the extra `postgres`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from gateway.database.database import Connection, Database, Rows, T, Work

CONNECT_TIMEOUT_S = 5
_OPTIONS = "-c statement_timeout=10000 -c lock_timeout=5000"
MAX_DEADLOCKS = 5
"""Tries of a transaction that PostgreSQL ends so that another one can go on."""
_SCHEMA_LOCK = 7262390851
"""Number of the advisory lock that one gateway holds while it creates the tables."""


class _Placeholders:
    """A connection whose parameters are "?" as SQLite's are."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
        """Run one statement."""
        return self.raw.execute(query.replace("?", "%s").encode(), values)


class PostgresDatabase(Database[_Placeholders]):
    """A connection that breaks is replaced before the next transaction."""

    serial = "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    lock = " FOR UPDATE"
    lock_free_rows = " FOR UPDATE SKIP LOCKED"
    errors = (psycopg.Error, OSError)

    def __init__(self, url: str, name: str, schema: str, remedy: str = "") -> None:
        """`remedy`: a sentence for errors."""
        super().__init__(name, remedy)
        self._url = url
        self._schema = schema.replace("{serial}", self.serial)
        self._has_schema = False

    def run(self, work: Work[T], *, is_write: bool) -> T:
        """Run `work` in this thread, in one transaction if it writes; again after a deadlock."""
        try:
            self.connection.raw.execute("")
        except psycopg.OperationalError:  # the server has closed it
            self.drop()
        connection = self.connection
        if not is_write:
            return work(connection)
        for tries_left in range(MAX_DEADLOCKS, 0, -1):
            try:
                with connection.raw.transaction():
                    return work(connection)
            except psycopg.errors.DeadlockDetected:  # it is rolled back, and the other one went on
                if tries_left == 1:
                    raise
        raise AssertionError("unreachable")

    def used_bytes(self, connection: Connection) -> int:
        """0: the server's operator bounds it."""
        return 0

    def disconnect(self, opened: _Placeholders) -> None:
        """Close a connection, in whatever thread."""
        opened.raw.close()

    def describe(self, error: Exception) -> str:
        """Without the error's detail, which may quote a row."""
        primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
        return primary or type(error).__name__

    def connect(self) -> _Placeholders:
        """A new connection; creates the tables where there are none."""
        raw = psycopg.connect(self._url, connect_timeout=CONNECT_TIMEOUT_S, options=_OPTIONS, autocommit=True)
        try:
            if not self._has_schema:  # its locks wait for every writer
                self._create(raw)
        except BaseException:
            raw.close()
            raise
        return _Placeholders(raw)

    def _create(self, raw: psycopg.Connection[Any]) -> None:
        for statement in filter(
            str.strip, self._schema.split(";")
        ):  # each alone: together they could deadlock
            with raw.transaction():
                raw.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
                raw.execute(statement.encode())
        self._has_schema = True
