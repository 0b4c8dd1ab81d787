"""One asynchronous stream with several readers, each from its beginning: the buffer behind single-flight.

A task of its own reads the source, so that a reader who leaves does not end the stream for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Generic, TypeVar

from gateway.answer import close_source

T = TypeVar("T")

MAX_AHEAD = 256
"""Items that the source may be ahead of the slowest reader: backpressure reaches it beyond."""
MAX_KEPT_BYTES = 1 << 20
"""A longer stream is passed on but not kept, so it takes no more readers and is not recorded."""


class Broadcast(Generic[T]):
    """Reads `source` while it has readers; cancels it when the last one has left."""

    def __init__(
        self,
        source: AsyncIterator[T],
        size_of: Callable[[T], int],
        *,
        on_complete: Callable[[Sequence[T]], None],
        on_closed: Callable[[], None],
    ) -> None:
        """`on_complete` gets all items of a source that ended well; `on_closed`: no reader can join now."""
        self.is_open = True
        self._source = source
        self._size_of = size_of
        self._on_complete = on_complete
        self._on_closed = on_closed
        self._items: deque[T] = deque()
        self._first = 0  # number of the first item that is kept
        self._num_bytes = 0
        self._readers: set[Reader[T]] = set()
        self._payers: list[Reader[T]] = []  # in the order in which they came; empty when one has paid
        self._end: BaseException | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def reader(self) -> Reader[T]:
        """All items from the first on. Only while `is_open`; `aclose()` leaves."""
        found = Reader(self)
        self._readers.add(found)
        self._payers.append(found)
        if self._task is None:
            self._task = asyncio.create_task(self._pump())
        return found

    async def item(self, number: int) -> T:
        """Wait for an item. Raises StopAsyncIteration after the last one, or the source's error."""
        while number >= self._first + len(self._items):
            if self._end is not None:
                raise self._end
            await self._changed.wait()
        return self._items[number - self._first]

    async def leave(self, reader: Reader[T]) -> None:
        """One reader less; the last one cancels the source."""
        self._readers.discard(reader)
        self.notify()
        if not self._readers and self._task is not None and self._end is None:
            self._close()
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def settle(self, reader: Reader[T]) -> bool:
        """Whether this reader, which is over, pays for all: the first of those that are left at the end."""
        if reader not in self._payers:
            return False
        is_first = self._payers[0] is reader
        self._payers.remove(reader)
        if not is_first or (self._payers and self._end is None):
            return False
        self._payers.clear()
        return True

    def notify(self) -> None:
        """Wake readers that wait for an item, and a source that waits for a reader."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _pump(self) -> None:
        end: BaseException = StopAsyncIteration()
        try:
            async for item in self._source:
                self._append(item)
                while self._is_far_ahead():
                    await self._changed.wait()
            if self.is_open:
                self._on_complete(list(self._items))
        except Exception as error:  # noqa: BLE001 - every reader raises it
            end = error
        except asyncio.CancelledError as cancelled:
            end = cancelled
            raise
        finally:
            self._end = end
            self._close()
            self.notify()
            await close_source(self._source)

    def _append(self, item: T) -> None:
        self._items.append(item)
        self._num_bytes += self._size_of(item)
        if self._num_bytes > MAX_KEPT_BYTES:
            self._close()
            needed = min((reader.position for reader in self._readers), default=self._first)
            for _ in range(needed - self._first):
                self._items.popleft()
            self._first = max(self._first, needed)
        self.notify()

    def _is_far_ahead(self) -> bool:
        slowest = min((reader.position for reader in self._readers), default=self._first)
        return self._first + len(self._items) - slowest > MAX_AHEAD

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._on_closed()


class Reader(Generic[T]):
    """One reader's position. A class, since an async generator that never started is not told to close."""

    def __init__(self, broadcast: Broadcast[T]) -> None:
        self.position = 0
        self._broadcast = broadcast

    def __aiter__(self) -> Reader[T]:
        """Return the reader itself."""
        return self

    async def __anext__(self) -> T:
        """The next item."""
        item = await self._broadcast.item(self.position)
        self.position += 1
        self._broadcast.notify()
        return item

    async def aclose(self) -> None:
        """Stop reading."""
        await self._broadcast.leave(self)

    def must_pay(self) -> bool:
        """Whether the request of this reader pays for the source. Ask once, when it is over and closed."""
        return self._broadcast.settle(self)
