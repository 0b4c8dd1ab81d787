"""Bounds retries by the calls that are made anyway, so that they cannot multiply an overload."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_S = 60
ALWAYS_PER_S = 3
"""Retries that a quiet upstream may have."""


@dataclass(slots=True)
class _Second:
    at: int
    calls: int = 0
    retries: int = 0


class RetryBudget:
    """Counts the calls and retries of one model over the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[_Second] = deque()
        self._calls = 0
        self._retries = 0

    def count_call(self) -> None:
        """A request asks the model for the first time."""
        self._now().calls += 1
        self._calls += 1

    def try_take(self, share: float) -> bool:
        """Whether a retry is allowed, which it then counts: up to `share` of the calls, and 3 per second."""
        now = self._now()
        if now.retries >= ALWAYS_PER_S and self._retries + 1 > share * self._calls:
            return False
        now.retries += 1
        self._retries += 1
        return True

    def _now(self) -> _Second:
        at = int(self._clock())
        seconds = self._seconds
        while seconds and seconds[0].at <= at - WINDOW_S:
            old = seconds.popleft()
            self._calls -= old.calls
            self._retries -= old.retries
        if not seconds or seconds[-1].at != at:
            seconds.append(_Second(at))
        return seconds[-1]
