"""Single-flight: equal requests that run at the same time share one model call.

The first request of a key leads; those that follow wait for its answer and read it from the beginning. A
leader that fails or leaves before it has an answer hands over to a follower.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from gateway.answer import Delta, Generated, Relayed
from gateway.response_cache.broadcast import Broadcast

DELTA_BYTES = 64
"""Of a delta beside its texts."""

_View = Callable[[], "Generated | Relayed | None"]
"""Makes the leader's answer readable for one more request."""


class Flight:
    """One model call that may have followers."""

    def __init__(self, on_landed: Callable[[], None]) -> None:
        """`on_landed` is called when no request can join any more."""
        self._on_landed = on_landed
        self._view: asyncio.Future[_View] = asyncio.get_running_loop().create_future()

    async def join(self) -> Generated | Relayed | None:
        """The leader's answer for one more request; None when there is none to join: ask again."""
        view = await asyncio.shield(self._view)
        return view()

    def lead(
        self, answer: Generated | Relayed, on_complete: Callable[[Sequence[Any]], None]
    ) -> Generated | Relayed:
        """The leader has an answer: returns it to be read. `on_complete` gets its items at the end."""
        source = answer.deltas if isinstance(answer, Generated) else answer.body
        if isinstance(source, bytes):  # it is complete already: those who wait get it too
            on_complete([source])
            self._end(lambda: answer)
            return answer

        broadcast: Broadcast[Any] = Broadcast(
            source, _size_of, on_complete=on_complete, on_closed=self._on_landed
        )
        self._view.set_result(lambda: _with_stream(answer, broadcast.reader()) if broadcast.is_open else None)
        return _with_stream(answer, broadcast.reader())

    def abandon(self) -> None:
        """There is no answer to share: the next follower leads. Does nothing once an answer is shared."""
        if not self._view.done():
            self._end(lambda: None)

    def _end(self, view: _View) -> None:
        self._view.set_result(view)
        self._on_landed()


class Flights:
    """The model calls under way, by the key of their question."""

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight] = {}

    def get(self, key: bytes) -> Flight | None:
        """The flight to join, if there is one."""
        return self._flights.get(key)

    def start(self, key: bytes) -> Flight:
        """Lead a new flight."""

        def landed() -> None:
            if self._flights.get(key) is flight:
                del self._flights[key]

        flight = self._flights[key] = Flight(landed)
        return flight


def _with_stream(answer: Generated | Relayed, stream: AsyncIterator[Any]) -> Generated | Relayed:
    """A view of the answer with a stream and finish reasons of its own; the usage is shared."""
    if isinstance(answer, Generated):
        return replace(answer, deltas=stream, finish_reasons=[])
    return replace(answer, body=stream)


def _size_of(item: Delta | bytes) -> int:
    if isinstance(item, bytes):
        return len(item)
    arguments = sum(len(call.arguments) for call in item.tool_calls)
    return DELTA_BYTES * (1 + len(item.tokens)) + len(item.text) + len(item.reasoning) + arguments
