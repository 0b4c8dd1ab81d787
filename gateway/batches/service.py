"""Files and batches of one worker: the stores in one database, and what runs the batches."""

from __future__ import annotations

from gateway.batches import files, store
from gateway.batches.files import FileStore
from gateway.batches.locks import BatchLocks
from gateway.batches.runner import BatchRunner
from gateway.batches.store import BatchStore
from gateway.database.sqlite import SqliteDatabase


class BatchService:
    """The parts; `runner` is started and closed by the application that answers the lines."""

    def __init__(self, data_dir: str, max_line_bytes: int) -> None:
        """`data_dir`: "" for none, where nothing can be stored."""
        self._database = SqliteDatabase(data_dir, "batches", files.SCHEMA + store.SCHEMA)
        self.files = FileStore(self._database, data_dir)
        self.batches = BatchStore(self._database, self.files)
        locks = BatchLocks(data_dir)
        self.runner = BatchRunner(self.batches, self.files, locks, max_line_bytes)

    @property
    def fault(self) -> str:
        """Why the database failed last; "" when it did not."""
        return self._database.fault

    async def close(self) -> None:
        """Close the database, after the runner."""
        await self._database.close()
