"""Counts of the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Second:
    """What happened in one of them."""

    at: int
    calls: int = 0
    marked: int = 0


class Window:
    """How many calls there were in the last `span_s` seconds, and how many of something among them."""

    def __init__(self, span_s: int, clock: Callable[[], float]) -> None:
        self.calls = 0
        self.marked = 0
        self._span_s = span_s
        self._clock = clock
        self._seconds: deque[Second] = deque()

    def add(self, *, calls: int = 0, marked: int = 0) -> None:
        """Count these in the second of now."""
        seconds = self._seconds
        now = seconds[-1] if seconds and seconds[-1].at == int(self._clock()) else self.now()
        now.calls += calls
        now.marked += marked
        self.calls += calls
        self.marked += marked

    def now(self) -> Second:
        """The second of now, once the oldest ones have left the sums."""
        at = int(self._clock())
        seconds = self._seconds
        while seconds and seconds[0].at <= at - self._span_s:
            old = seconds.popleft()
            self.calls -= old.calls
            self.marked -= old.marked
        if not seconds or seconds[-1].at != at:
            seconds.append(Second(at))
        return seconds[-1]
