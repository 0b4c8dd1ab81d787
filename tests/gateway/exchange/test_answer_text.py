from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.answer import Delta, Generated, Usage
from gateway.exchange.answer_text import whole_text


async def test_the_text_of_all_choices_without_reasoning() -> None:
    async def deltas() -> AsyncIterator[Delta]:
        yield Delta(0, reasoning="hidden")
        yield Delta(0, "one ")
        yield Delta(1, "two ")
        yield Delta(0, "three", finish_reason="stop")

    assert await whole_text(Generated(deltas(), Usage())) == "one two three"
