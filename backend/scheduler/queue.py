"""The waiting queue: by priority, then first come, first served; preempted sequences go to the front."""

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
    """Sequences that do not run: online ones, and behind them those of background requests.

    Every operation but `first` is O(1).
    """

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self._online: OrderedDict[str, Sequence] = OrderedDict()
        self._background: OrderedDict[str, Sequence] = OrderedDict()
        self.departure_interval_s = 0.0  # moving average of the time between two departures
        self._last_departure_s = -1.0

    def __len__(self) -> int:
        return len(self._online) + len(self._background)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._online or request_id in self._background

    def push(self, sequence: Sequence) -> None:
        """Append a new sequence. Raises QueueFull when the bound of its priority is reached."""
        sequences = self._of(sequence)
        if len(sequences) >= self._max_queue:
            retry_s = self._retry_after_s()
            raise QueueFull(
                f"{len(sequences)} requests wait already and the queue holds {self._max_queue}; "
                f"try again in {retry_s:.0f} s",
                retry_after_s=retry_s,
            )
        sequences[sequence.request.request_id] = sequence

    def push_front(self, sequence: Sequence) -> None:
        """Put a preempted sequence first. The bound does not apply: it was admitted before."""
        sequences, request_id = self._of(sequence), sequence.request.request_id
        sequences[request_id] = sequence
        sequences.move_to_end(request_id, last=False)

    def first(self, num_sequences: int) -> list[Sequence]:
        """Return up to `num_sequences` from the front, skipping blocked ones; they stay in the queue.

        Those of background requests only when no online one is ready.
        """
        for sequences in (self._online, self._background):
            ready = (sequence for sequence in sequences.values() if not sequence.is_blocked)
            if found := list(itertools.islice(ready, num_sequences)):
                return found
        return []

    def first_online(self) -> Sequence | None:
        """The first online sequence that is not blocked; it stays in the queue."""
        return next((sequence for sequence in self._online.values() if not sequence.is_blocked), None)

    def depart(self, sequence: Sequence, now_s: float) -> None:
        """Remove a sequence that is being admitted, and update the measured departure interval."""
        del self._of(sequence)[sequence.request.request_id]
        if self._last_departure_s >= 0.0:
            interval_s = now_s - self._last_departure_s
            self.departure_interval_s += _EMA_WEIGHT * (interval_s - self.departure_interval_s)
        # The gap after an empty queue says nothing about how fast a full one drains.
        self._last_departure_s = now_s if len(self) else -1.0

    def remove(self, request_id: str) -> Sequence | None:
        """Remove an aborted sequence; return None if it is not in the queue."""
        return self._online.pop(request_id, None) or self._background.pop(request_id, None)

    def sequences(self) -> list[Sequence]:
        """Return all sequences in order."""
        return [*self._online.values(), *self._background.values()]

    def _of(self, sequence: Sequence) -> OrderedDict[str, Sequence]:
        return self._background if sequence.request.priority else self._online

    def _retry_after_s(self) -> float:
        # Once a tenth of the queue has drained, a retry is likely to find room.
        drain_s = self.departure_interval_s * len(self) / 10
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, drain_s))
