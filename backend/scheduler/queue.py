"""The waiting queue: by priority, then fair by tenant; a tenant's own are first come, first served."""

from __future__ import annotations

from backend.errors import QueueFull
from backend.scheduler.tenants import Tenants
from backend.types import Sequence

_MIN_RETRY_S = 1.0
_MAX_RETRY_S = 60.0
_EMA_WEIGHT = 0.1
"""Weight of the newest sample in the exponential moving average of the time between two admissions."""


class WaitingQueue:
    """Sequences that do not run: online ones, and behind them those of background requests.

    With one tenant every operation but `first` is O(1).
    """

    def __init__(self, max_queue: int) -> None:
        self._max_queue = max_queue
        self.online = Tenants()
        self.background = Tenants()
        self._waiting: dict[str, Sequence] = {}  # by request id
        self.departure_interval_s = 0.0  # moving average of the time between two departures
        self._last_departure_s = -1.0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def tenants_of(self, sequence: Sequence) -> Tenants:
        """The tenants of its priority."""
        return self.background if sequence.request.priority else self.online

    def push(self, sequence: Sequence) -> None:
        """Append a new sequence. Raises QueueFull when the bound of its priority is reached.

        A tenant with less than its equal share of the queue is not refused because of others.
        """
        tenants = self.tenants_of(sequence)
        if tenants.num_waiting >= self._max_queue and tenants.has_share(sequence, self._max_queue):
            retry_s = self._retry_after_s()
            raise QueueFull(
                f"{tenants.num_waiting} requests wait already and the queue holds {self._max_queue}; "
                f"try again in {retry_s:.0f} s",
                retry_after_s=retry_s,
            )
        self._waiting[sequence.request.request_id] = sequence
        tenants.enter(sequence)

    def push_front(self, sequence: Sequence) -> None:
        """Put a sequence that was admitted before ahead of its tenant's others. The bound does not apply."""
        self._waiting[sequence.request.request_id] = sequence
        self.tenants_of(sequence).enter(sequence, is_first=True)

    def first(self, num_sequences: int) -> list[Sequence]:
        """Return up to `num_sequences` from the front, skipping blocked ones; they stay in the queue.

        Those of background requests only when no online one is ready.
        """
        for tenants in (self.online, self.background):
            if tenants.num_waiting and (found := tenants.first(num_sequences)):
                return found
        return []

    def first_online(self) -> Sequence | None:
        """The first online sequence that is not blocked; it stays in the queue."""
        return next(iter(self.online.first(1)), None) if self.online.num_waiting else None

    def depart(self, sequence: Sequence, now_s: float) -> None:
        """Remove a sequence that is being admitted, and update the measured departure interval."""
        del self._waiting[sequence.request.request_id]
        self.tenants_of(sequence).start(sequence)
        if self._last_departure_s >= 0.0:
            interval_s = now_s - self._last_departure_s
            self.departure_interval_s += _EMA_WEIGHT * (interval_s - self.departure_interval_s)
        # The gap after an empty queue says nothing about how fast a full one drains.
        self._last_departure_s = now_s if len(self) else -1.0

    def remove(self, request_id: str) -> Sequence | None:
        """Remove an aborted sequence; return None if it is not in the queue."""
        sequence = self._waiting.pop(request_id, None)
        if sequence is not None:
            self.tenants_of(sequence).drop(sequence)
        return sequence

    def sequences(self) -> list[Sequence]:
        """Return all sequences: online ones first, by tenant."""
        return [*self.online.waiting, *self.background.waiting]

    def _retry_after_s(self) -> float:
        # Once a tenth of the queue has drained, a retry is likely to find room.
        drain_s = self.departure_interval_s * len(self) / 10
        return min(_MAX_RETRY_S, max(_MIN_RETRY_S, drain_s))
