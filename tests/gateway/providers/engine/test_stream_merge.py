from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest

from backend.errors import EngineUnavailable
from backend.server.engine_client import RequestStream
from backend.types import StepOutput
from gateway.providers.engine.stream_merge import merged


class Lines:
    """A stream as the engine client returns it: outputs, and optionally an error."""

    def __init__(self, ids: Sequence[int], error: Exception | None = None) -> None:
        self._ids = list(ids)
        self._error = error

    def __aiter__(self) -> Lines:
        return self

    async def __anext__(self) -> StepOutput:
        await asyncio.sleep(0)
        if self._ids:
            return StepOutput(request_id="", token_ids=[self._ids.pop(0)])
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration


def streams(*lines: Lines) -> list[RequestStream]:
    return cast("list[RequestStream]", list(lines))


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_every_output_arrives_once_in_its_streams_order(count: int) -> None:
    lines = [Lines(range(10 * i, 10 * i + i + 1)) for i in range(count)]
    found: dict[int, list[int]] = {}
    async for number, output in merged(streams(*lines)):
        found.setdefault(number, []).extend(output.token_ids)
    assert found == {i: list(range(10 * i, 10 * i + i + 1)) for i in range(count)}


@pytest.mark.parametrize("others", [0, 3])
async def test_an_error_of_one_ends_all(others: int) -> None:
    lines = [Lines([1], EngineUnavailable("gone")), *(Lines(range(1000)) for _ in range(others))]
    before = asyncio.all_tasks()
    with pytest.raises(EngineUnavailable):
        async for _ in merged(streams(*lines)):
            pass
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_closing_early_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    outputs = merged(streams(Lines(range(1000)), Lines(range(1000))))
    await anext(outputs)
    await outputs.aclose()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
