"""A stored response's events, sent as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from gateway.web.deadlines import Deadlines
from gateway.web.http_call import HttpCall

FOLLOWED_S = 86400.0
"""How long a client may follow one response."""


async def send_events(
    call: HttpCall, events: AsyncIterator[bytes], headers: Mapping[str, str] | None = None
) -> None:
    """Send a stream until it ends or the client leaves. Raises ApiError."""
    deadlines = Deadlines(FOLLOWED_S)
    deadlines.watch_disconnect(call.receive)
    try:
        await call.start_stream(headers)
        async for piece in events:
            await call.write(piece)
        await call.end_stream()
    except asyncio.CancelledError:
        if deadlines.cancel_reason is None:
            raise
        raise deadlines.error() from None
    finally:
        deadlines.close()
