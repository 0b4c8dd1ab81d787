"""The waiting queue: first come, first served, bounded; preempted sequences go to the front."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from backend.errors import QueueFull
from backend.types import Sequence

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_EMA_WEIGHT = 0.1
"""Weight of the newest sample in the exponential moving average of the time between two admissions."""


class WaitingQueue:
    """Sequences that do not run. Every operation but `first` is O(1)."""

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._sequences: OrderedDict[str, Sequence] = OrderedDict()
        self.departure_interval_s = 0.0  # moving average of the time between two departures
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
        """Put a preempted sequence first. The bound does not apply: it was admitted before."""
        request_id = sequence.request.request_id
        self._sequences[request_id] = sequence
        self._sequences.move_to_end(request_id, last=False)

    def first(self, num_sequences: int) -> list[Sequence]:
        """Return up to `num_sequences` from the front, skipping blocked ones; they stay in the queue."""
        ready = (sequence for sequence in self._sequences.values() if not sequence.is_blocked)
        return list(itertools.islice(ready, num_sequences))

    def depart(self, sequence: Sequence, now_s: float) -> None:
        """Remove a sequence that is being admitted, and update the measured departure interval."""
        del self._sequences[sequence.request.request_id]
        if self._last_departure_s >= 0.0:
            interval_s = now_s - self._last_departure_s
            self.departure_interval_s += _EMA_WEIGHT * (interval_s - self.departure_interval_s)
        # The gap after an empty queue says nothing about how fast a full one drains.
        self._last_departure_s = now_s if self._sequences else -1.0

    def remove(self, request_id: str) -> Sequence | None:
        """Remove an aborted sequence; return None if it is not in the queue."""
        return self._sequences.pop(request_id, None)

    def sequences(self) -> list[Sequence]:
        """Return all sequences in order."""
        return list(self._sequences.values())

    def _retry_after_s(self) -> float:
        # Once a tenth of the queue has drained, a retry is likely to find room.
        drain_s = self.departure_interval_s * len(self._sequences) / 10
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, drain_s))
