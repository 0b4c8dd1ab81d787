"""The waiting queue: first come, first served, bounded, with the preempted in front."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from backend.errors import QueueFull
from backend.types import Sequence

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_SMOOTHING = 0.1
"""Weight of the newest interval between two departures."""


class WaitingQueue:
    """Sequences without a row. Every operation but `first` is O(1)."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()
        self._departure_interval_s = 0.0
        self._last_departure_s = -1.0

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def push(self, sequence: Sequence) -> None:
        """Append a new sequence. Raises QueueFull at the bound."""
        if len(self._sequences) >= self._max_queue:
            retry_s = self._retry_after_s()
            raise QueueFull(
                f"{len(self._sequences)} requests wait already and the queue holds {self._max_queue}; "
                f"try again in {retry_s:.0f} s",
                retry_after_s=retry_s,
            )
        self._sequences[sequence.request.request_id] = sequence

    def push_front(self, sequence: Sequence) -> None:
        """Put a preempted sequence first; it was admitted once, so the bound does not count."""
        request_id = sequence.request.request_id
        self._sequences[request_id] = sequence
        self._sequences.move_to_end(request_id, last=False)

    def first(self, num_sequences: int) -> list[Sequence]:
        """The sequences whose turn is next, in order, without the blocked ones; they stay in the queue."""
        ready = (sequence for sequence in self._sequences.values() if not sequence.is_blocked)
        return list(itertools.islice(ready, num_sequences))

    def depart(self, sequence: Sequence, now_s: float) -> None:
        """Remove a sequence that is being admitted, and learn how fast the queue moves."""
        del self._sequences[sequence.request.request_id]
        if self._last_departure_s >= 0.0:
            interval_s = now_s - self._last_departure_s
            self._departure_interval_s += _SMOOTHING * (interval_s - self._departure_interval_s)
        # An idle queue says nothing about how fast a full one moves.
        self._last_departure_s = now_s if self._sequences else -1.0

    def remove(self, request_id: str) -> Sequence | None:
        """Remove an aborted sequence; None when it does not wait here."""
        return self._sequences.pop(request_id, None)

    def sequences(self) -> list[Sequence]:
        """All that wait, in order."""
        return list(self._sequences.values())

    def _retry_after_s(self) -> float:
        # After a tenth of the queue has left, whoever comes back is likely to find a place.
        drain_s = self._departure_interval_s * len(self._sequences) / 10
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, drain_s))
