"""Closing what follows an iterator closes that too, however far it was read."""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.answer import Following, close_source


class Numbers(AsyncIterator[int]):
    def __init__(self) -> None:
        self.last = 0
        self.is_closed = False

    async def __anext__(self) -> int:
        if self.last == 2:
            raise StopAsyncIteration
        self.last += 1
        return self.last

    async def aclose(self) -> None:
        self.is_closed = True


async def test_items_are_those_of_the_source() -> None:
    assert [each async for each in Following(Numbers())] == [1, 2]


async def test_one_that_was_never_read_closes_its_source() -> None:
    numbers = Numbers()
    await Following(Following(numbers)).aclose()
    assert numbers.is_closed and numbers.last == 0


async def test_what_cannot_be_closed_is_left() -> None:
    await close_source(b"whole")
    await close_source(aiter(Following(Numbers())))
