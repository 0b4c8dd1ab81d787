"""Single-flight: requests of one answer that run at the same time share one model call.

The first request of a key leads; those that follow wait for its answer and read it from the beginning. A
leader that fails or leaves before it has an answer hands over to a follower.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from numpy import float32
from numpy.typing import NDArray

from cache.question import Question
from cache.semantic_cache import Known
from gateway.answer import Delta, Generated, Relayed
from gateway.errors import ApiError, TimedOut
from gateway.response_cache.broadcast import Broadcast, Reader

DELTA_BYTES = 64
"""Size of a delta beside its texts."""

_View = Callable[[], "Generated | Relayed | None"]
"""Makes the leader's answer readable for one more request."""


class Flight:
    """One model call that may have followers."""

    def __init__(self, key: bytes, on_landed: Callable[[], None]) -> None:
        """`key`: of the answer in the cache. `on_landed` is called when no request can join any more."""
        self.key = key
        self.is_hung = False
        self.traceparent = ""  # of the leader's request
        self._on_landed = on_landed
        self._view: asyncio.Future[_View] = asyncio.get_running_loop().create_future()

    async def join(self) -> Generated | Relayed | None:
        """The leader's answer for one more request; None when there is none to join: ask again.

        Raises TimedOut where the leader has waited in vain.
        """
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

    def follow(self, other: Flight) -> None:
        """The leader has joined `other`: so do all that join this one."""
        self.key = other.key
        other._view.add_done_callback(lambda view: self._end(view.result()))

    def abandon(self) -> None:
        """There is no answer to share: the next follower leads. Does nothing once an answer is shared."""
        if not self._view.done():
            self._end(lambda: None)

    def time_out(self, error: ApiError) -> None:
        """The model gave the leader nothing in time: nor would those who wait get anything."""

        def view() -> None:
            raise TimedOut(error.message, code=error.code)

        if not self._view.done():
            self.is_hung = True
            self._end(view)

    def _end(self, view: _View) -> None:
        self._view.set_result(view)
        self._on_landed()


class Flights:
    """The model calls under way, by the key of their question."""

    def __init__(self) -> None:
        self._flights: dict[bytes, Flight] = {}
        self._known: defaultdict[bytes, dict[bytes, Known]] = defaultdict(dict)  # by partition, then by key

    def get(self, key: bytes) -> Flight | None:
        """The flight to join, if there is one."""
        return self._flights.get(key)

    def of(self, key: bytes) -> Flight:
        """The flight of a key that `others` gave."""
        return self._flights[key]

    def start(self, question: Question) -> Flight:
        """Lead a new flight."""
        key, partition = question.key, question.partition

        def landed() -> None:
            if self._flights.get(key) is flight:
                del self._flights[key]
                self._known[partition].pop(key, None)
                if not self._known[partition]:
                    del self._known[partition]

        flight = self._flights[key] = Flight(key, landed)
        return flight

    def announce(self, question: Question, vector: NDArray[float32]) -> None:
        """From now on questions that mean the same as this one may join its flight, if it has one."""
        if question.key in self._flights:
            self._known[question.partition][question.key] = Known(question.text, vector)

    def others(self, question: Question) -> dict[bytes, Known]:
        """What was announced in the question's partition, by key."""
        found = self._known.get(question.partition)
        return {key: known for key, known in found.items() if key != question.key} if found else {}


def share_of(answer: Generated | Relayed) -> Reader[Any] | None:
    """What reads an answer that others may read too; None for one that was whole when it was shared."""
    stream = answer.deltas if isinstance(answer, Generated) else answer.body
    return stream if isinstance(stream, Reader) else None


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
