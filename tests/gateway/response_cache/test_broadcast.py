from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.response_cache.broadcast import MAX_AHEAD, MAX_KEPT_BYTES, Broadcast

ITEM_BYTES = 8


class Source:
    """Counts up to `count`, one item per permit; records whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None, *, permits: int | None = None) -> None:
        self.permits = asyncio.Semaphore(count if permits is None else permits)
        self.num_given = 0
        self.is_closed = False
        self._count = count
        self._error = error

    async def __aiter__(self) -> AsyncIterator[int]:
        try:
            for number in range(self._count):
                await self.permits.acquire()
                self.num_given += 1
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


class Heard:
    """What the callbacks of a broadcast were told."""

    def __init__(self) -> None:
        self.complete: list[Sequence[int]] = []
        self.num_closed = 0

    def closed(self) -> None:
        self.num_closed += 1


def broadcast_of(source: Source, item_bytes: int = ITEM_BYTES) -> tuple[Broadcast[int], Heard]:
    heard = Heard()
    found = Broadcast(
        source.__aiter__(), lambda _: item_bytes, on_complete=heard.complete.append, on_closed=heard.closed
    )
    return found, heard


async def read(reader: AsyncIterator[int]) -> list[int]:
    return [item async for item in reader]


@given(count=st.integers(0, 40), join_after=st.lists(st.integers(0, 40), max_size=5))
@settings(deadline=None)
def test_every_reader_gets_every_item(count: int, join_after: list[int]) -> None:
    async def run() -> None:
        source = Source(count, permits=0)
        broadcast, heard = broadcast_of(source)
        readers = [asyncio.create_task(read(broadcast.reader()))]
        for number in range(count):
            joining = sum(after == number for after in join_after)
            readers += [asyncio.create_task(read(broadcast.reader())) for _ in range(joining)]
            source.permits.release()
            await asyncio.sleep(0)
        assert await asyncio.gather(*readers) == [list(range(count))] * len(readers)
        assert heard.complete == [list(range(count))] and heard.num_closed == 1
        assert source.is_closed and not broadcast.is_open

    asyncio.run(run())


async def test_an_error_reaches_every_reader_after_the_items() -> None:
    broadcast, heard = broadcast_of(Source(2, ValueError("cut")))
    readers = [broadcast.reader() for _ in range(3)]
    for reader in readers:
        assert [await anext(reader), await anext(reader)] == [0, 1]
        with pytest.raises(ValueError, match="cut"):
            await anext(reader)
    assert heard.complete == [] and heard.num_closed == 1


async def test_the_last_reader_who_leaves_cancels_the_source() -> None:
    source = Source(10, permits=1)
    broadcast, heard = broadcast_of(source)
    first, second = broadcast.reader(), broadcast.reader()
    assert await anext(first) == 0
    await first.aclose()  # type: ignore[attr-defined]
    assert not source.is_closed and broadcast.is_open
    await second.aclose()  # type: ignore[attr-defined]
    assert source.is_closed and not broadcast.is_open
    assert heard.complete == [] and heard.num_closed == 1


async def test_a_reader_who_leaves_does_not_disturb_the_others() -> None:
    source = Source(5)
    broadcast, heard = broadcast_of(source)
    leaving, staying = broadcast.reader(), broadcast.reader()
    await anext(leaving)
    await leaving.aclose()  # type: ignore[attr-defined]
    assert await read(staying) == [0, 1, 2, 3, 4]
    assert heard.complete == [[0, 1, 2, 3, 4]]


async def test_the_source_waits_for_the_slowest_reader() -> None:
    count = 3 * MAX_AHEAD
    source = Source(count)
    broadcast, _ = broadcast_of(source)
    slow, fast = broadcast.reader(), broadcast.reader()
    reading = asyncio.create_task(read(fast))
    while source.num_given <= MAX_AHEAD:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert source.num_given == MAX_AHEAD + 1
    assert await read(slow) == list(range(count)) == await reading


async def test_a_long_stream_is_passed_on_but_not_kept() -> None:
    item_bytes = MAX_KEPT_BYTES // 4
    source = Source(20)
    broadcast, heard = broadcast_of(source, item_bytes)
    reader = broadcast.reader()
    found = []
    async for item in reader:
        found.append(item)
        assert len(broadcast._items) <= MAX_AHEAD
    assert found == list(range(20))
    assert not broadcast.is_open and heard.complete == [] and heard.num_closed == 1
