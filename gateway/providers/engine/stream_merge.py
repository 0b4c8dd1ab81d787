"""Several streams of the engine as one, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from backend.server.client import RequestStream
from backend.types import StepOutput


async def merged(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, StepOutput], None]:
    """(number of the stream, its output) until all have ended. Raises what a stream raises.

    One output per stream is in hand at most: what a slow reader misses is merged inside the streams.
    """
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    ready: asyncio.Queue[tuple[int, StepOutput | BaseException | None]] = asyncio.Queue(maxsize=1)
    pumps = [asyncio.create_task(_pump(number, stream, ready)) for number, stream in enumerate(streams)]
    try:
        for _ in range(len(pumps)):
            while True:
                number, item = await ready.get()
                if item is None:
                    break
                if isinstance(item, BaseException):
                    raise item
                yield number, item
    finally:
        for pump in pumps:
            pump.cancel()


async def _pump(
    number: int, stream: RequestStream, ready: asyncio.Queue[tuple[int, StepOutput | BaseException | None]]
) -> None:
    try:
        async for output in stream:
            await ready.put((number, output))
        await ready.put((number, None))
    except Exception as failure:  # noqa: BLE001 - raised again by the reader
        await ready.put((number, failure))
