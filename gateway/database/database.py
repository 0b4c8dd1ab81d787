"""What both databases have in common: SQL in threads, by turns of tenants, and one error when it fails."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from gateway.database.lane import Lane
from gateway.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
OpenT = TypeVar("OpenT")
"""What a database's library calls a connection."""

NUM_READERS = 3
"""Connections of one worker that read, beside the one that writes: a long read delays no write."""


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Rows that it changed."""
        ...

    def fetchone(self) -> Any:  # noqa: ANN401 - a row has the types of its statement
        """The next row; None at the end."""
        ...

    def fetchall(self) -> list[Any]:
        """The rows that remain."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The rows that remain, one by one."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class Connection(Protocol):
    """Runs statements; a parameter is a "?"."""

    def execute(self, query: str, values: Sequence[Any] = ..., /) -> Rows:
        """Run one statement."""
        ...


Work = Callable[[Connection], T]


class Database(ABC, Generic[OpenT]):
    """One connection that writes and some that read, each opened in its thread on first use."""

    serial: str
    """The type of a primary key that counts rows, for schemas."""
    lock: str
    """Ends a SELECT of rows that the transaction will change."""
    lock_free_rows: str
    """`lock` that leaves out the rows that another transaction has locked."""
    errors: tuple[type[Exception], ...]
    """What `run` raises when the database fails."""

    def __init__(self, name: str, remedy: str, *, has_readers: bool = True) -> None:
        """`name`: of what is stored; `remedy`: a sentence for errors."""
        self._name = name
        self._remedy = remedy
        self._writing = self._reading = Lane(name, 1)
        if has_readers:
            self._reading = Lane(f"{name}-reader", NUM_READERS)
        self.fault = ""  # of the last use, for /health/ready
        self._own = threading.local()
        self._opened: set[OpenT] = set()

    @abstractmethod
    def run(self, work: Work[T], *, is_write: bool) -> T:
        """Run `work` in this thread, in one transaction if it writes."""

    @abstractmethod
    def used_bytes(self, connection: Connection) -> int:
        """Bytes in use; 0 where others than the policies bound them."""

    @abstractmethod
    def connect(self) -> OpenT:
        """A new connection, which the tables are there for."""

    @abstractmethod
    def disconnect(self, opened: OpenT) -> None:
        """Close a connection, in whatever thread."""

    def describe(self, error: Exception) -> str:
        """The error for the log; quotes nothing that is stored."""
        return str(error)

    @property
    def connection(self) -> OpenT:
        """This thread's."""
        opened: OpenT | None = getattr(self._own, "opened", None)
        if opened is None:
            opened = self._own.opened = self.connect()
            self._opened.add(opened)
        return opened

    def drop(self) -> None:
        """Close this thread's connection: the next use opens another."""
        opened = self.connection
        self._own.opened = None
        self._opened.discard(opened)
        self.disconnect(opened)

    async def close(self) -> None:
        """Wait for what runs, then close the connections and end the threads."""
        for lane in {self._writing, self._reading}:
            await lane.close()
        while self._opened:
            self.disconnect(self._opened.pop())

    async def read(self, work: Work[T], tenant: str = "") -> T:
        """Run `work`, which changes nothing, for a tenant. Raises Unavailable."""
        return await self._run(work, tenant, is_write=False)

    async def write(self, work: Work[T], tenant: str = "") -> T:
        """Run `work` in one transaction, for a tenant. Raises Unavailable."""
        return await self._run(work, tenant, is_write=True)

    async def _run(self, work: Work[T], tenant: str, *, is_write: bool) -> T:
        lane = self._writing if is_write else self._reading
        try:
            found = await lane.run(lambda: self.run(work, is_write=is_write), tenant)
        except self.errors as error:
            self.fault = f"failed last: {type(error).__name__}; the log says why"
            logger.error("the store of %s failed: %s", self._name, self.describe(error))
            raise Unavailable(
                f"The store of {self._name} failed; the log says why.{self._remedy}",
                code=f"{self._name.removesuffix('s')}_store_unavailable",
            ) from None
        self.fault = ""
        return found
