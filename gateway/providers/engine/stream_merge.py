"""Merges several engine streams into one, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from backend.server.engine_client import RequestStream
from backend.types import StepOutput


async def merged(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, StepOutput], None]:
    """Yield (index of the stream, its output) until all have ended. Raises what a stream raises.

    Each stream is at most one output ahead: while the reader is slow, streams merge their own outputs.
    """
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    ready: asyncio.Queue[tuple[int, StepOutput | BaseException | None]] = asyncio.Queue(maxsize=1)
    forwarders = [
        asyncio.create_task(_forward(number, stream, ready)) for number, stream in enumerate(streams)
    ]
    try:
        for _ in range(len(forwarders)):
            while True:
                number, item = await ready.get()
                if item is None:
                    break
                if isinstance(item, BaseException):
                    raise item
                yield number, item
    finally:
        for forwarder in forwarders:
            forwarder.cancel()


async def _forward(
    number: int, stream: RequestStream, ready: asyncio.Queue[tuple[int, StepOutput | BaseException | None]]
) -> None:
    try:
        async for output in stream:
            await ready.put((number, output))
        await ready.put((number, None))
    except Exception as failure:  # noqa: BLE001 - re-raised by the reader
        await ready.put((number, failure))
