"""What both databases have in common: SQL in a thread of their own, and one error when it fails."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from gateway.errors import Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")


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


class Database(ABC):
    """Opened on first use."""

    serial: str
    """The type of a primary key that counts rows, for schemas."""
    lock: str
    """Ends a SELECT of rows that the transaction will change."""
    lock_free_rows: str
    """As `lock`, but leaves out the rows that another transaction has locked."""
    errors: tuple[type[Exception], ...]
    """What `run` raises when the database fails."""

    def __init__(self, name: str, remedy: str) -> None:
        """`name`: of what is stored; `remedy`: a sentence for errors."""
        self._name = name
        self._remedy = remedy
        self._thread = ThreadPoolExecutor(1, name)

    @abstractmethod
    def run(self, work: Work[T], *, is_write: bool) -> T:
        """Run `work` in the database's thread, in one transaction if it writes."""

    @abstractmethod
    def used_bytes(self, connection: Connection) -> int:
        """Bytes in use; 0 where others than the policies bound them."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection, in the database's thread."""

    def describe(self, error: Exception) -> str:
        """The error for the log; quotes nothing that is stored."""
        return str(error)

    async def close(self) -> None:
        """Close the connection and end the thread."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.disconnect)
        self._thread.shutdown(wait=False)

    async def read(self, work: Work[T]) -> T:
        """Run `work`, which changes nothing. Raises Unavailable."""
        return await self._run(work, is_write=False)

    async def write(self, work: Work[T]) -> T:
        """Run `work` in one transaction. Raises Unavailable."""
        return await self._run(work, is_write=True)

    async def _run(self, work: Work[T], *, is_write: bool) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: self.run(work, is_write=is_write))
        except self.errors as error:
            logger.error("the store of %s failed: %s", self._name, self.describe(error))
            raise Unavailable(
                f"The store of {self._name} failed; the log says why.{self._remedy}",
                code=f"{self._name.removesuffix('s')}_store_unavailable",
            ) from None
