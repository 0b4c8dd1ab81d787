"""An SQLite file in the data folder. A transaction is complete or absent after a crash (WAL)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gateway.database.database import Connection, Database, T, Work

BUSY_TIMEOUT_S = 5.0
RETRY_S = 0.01
WRITE_RETRY_S = 0.001
"""SQLite itself waits up to 0.1 s between tries: a worker that writes often would keep the others out."""
_PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA secure_delete = ON;
PRAGMA foreign_keys = ON;
"""

_creating = threading.Lock()


class SqliteDatabase(Database[sqlite3.Connection]):
    """Writes are alone among all processes; reads are held up by none."""

    serial = "INTEGER PRIMARY KEY"
    lock = ""
    lock_free_rows = ""
    errors = (sqlite3.Error, OSError)

    def __init__(self, folder: str, name: str, schema: str, remedy: str = "") -> None:
        """`folder`: where `name`.sqlite is, or will be; "": in memory. `remedy`: a sentence for errors."""
        super().__init__(name, remedy, has_readers=bool(folder))
        self._path = Path(folder, f"{name}.sqlite") if folder else None
        self._schema = schema.replace("{serial}", self.serial)

    def exists(self) -> bool:
        """Whether there is a file, or an open connection."""
        return bool(self._opened) or (self._path is not None and self._path.exists())

    def run(self, work: Work[T], *, is_write: bool) -> T:
        """Run `work` in this thread, in one transaction if it writes."""
        connection = self.connection
        if not is_write:
            return work(connection)
        _begin(connection)
        with connection:
            return work(connection)

    def used_bytes(self, connection: Connection) -> int:
        """Bytes of the pages in use."""
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
        return (pages - free) * size

    def disconnect(self, opened: sqlite3.Connection) -> None:
        """Close a connection, in whatever thread."""
        opened.close()

    def connect(self) -> sqlite3.Connection:
        """A new connection; creates the file and its tables where there are none."""
        if self._path is not None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # For this user only: it holds prompts. An existing file is not opened: closing it would drop
            # the locks that other connections of this process hold, so no two threads create it.
            with _creating:
                self._path.touch(0o600)
        connection = sqlite3.connect(
            self._path or ":memory:", BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        _prepare(connection, _PRAGMAS + self._schema)
        return connection


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA busy_timeout = 0")
    _retry(lambda: connection.execute("BEGIN IMMEDIATE"), WRITE_RETRY_S)


def _prepare(connection: sqlite3.Connection, script: str) -> None:
    """Run the script. SQLite's own timeout does not cover two processes that turn a new file to WAL."""
    _retry(lambda: connection.executescript(script), RETRY_S)


def _retry(work: Callable[[], object], pause_s: float) -> None:
    """Try again while another process has the lock, for as long as BUSY_TIMEOUT_S."""
    until_s = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(pause_s)
        else:
            return
