"""An SQLite file in the data folder that all workers share, used in a thread of its own.

A transaction is complete or absent after a crash of the process (WAL).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gateway.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_TIMEOUT_S = 5.0
_PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA secure_delete = ON;
PRAGMA foreign_keys = ON;
"""


class Database:
    """The file is opened on first use."""

    def __init__(self, folder: str, name: str, schema: str, remedy: str = "") -> None:
        """`folder`: where `name`.sqlite is, or will be; "": in memory. `remedy`: a sentence for errors."""
        self._folder = folder
        self._name = name
        self._schema = schema
        self._remedy = remedy
        self._thread = ThreadPoolExecutor(1, name)
        self._connection: sqlite3.Connection | None = None

    def exists(self) -> bool:
        """Whether there is a file, or an open connection."""
        return self._connection is not None or (bool(self._folder) and self._path.exists())

    async def close(self) -> None:
        """Close the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, connection.close)
        self._thread.shutdown(wait=False)

    async def read(self, work: Work[T]) -> T:
        """Run `work`, which changes nothing. Raises Unavailable."""
        return await self._run(work)

    async def write(self, work: Work[T]) -> T:
        """Run `work` in one transaction, alone among all processes. Raises Unavailable."""

        def transaction(connection: sqlite3.Connection) -> T:
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                return work(connection)

        return await self._run(transaction)

    async def _run(self, work: Work[T]) -> T:
        def run() -> T:
            if self._connection is None:
                self._connection = self._open()
            return work(self._connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, run)
        except (sqlite3.Error, OSError) as error:
            logger.error("the store of %s failed: %s", self._name, error)
            raise Unavailable(
                f"The store of {self._name} failed; the log says why.{self._remedy}",
                code=f"{self._name.removesuffix('s')}_store_unavailable",
            ) from None

    @property
    def _path(self) -> Path:
        return Path(self._folder) / f"{self._name}.sqlite"

    def _open(self) -> sqlite3.Connection:
        path = ":memory:"
        if self._folder:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = str(self._path)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # prompts: for this user only
        connection = sqlite3.connect(path, BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        connection.executescript(_PRAGMAS + self._schema)
        return connection
