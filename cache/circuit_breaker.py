"""A circuit breaker: what has just failed is not asked again for a while (Nygard, Release It!)."""

from __future__ import annotations

import time
from collections.abc import Callable


class CircuitBreaker:
    """Opens on a failure; after `open_s` seconds one call may probe, and its outcome closes or reopens it."""

    __slots__ = ("_now_s", "_open_s", "_probe_s")

    def __init__(self, open_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._open_s = open_s
        self._now_s = now_s
        self._probe_s = 0.0  # 0: closed; else open until then

    @property
    def is_open(self) -> bool:
        """Whether the last call failed."""
        return self._probe_s > 0

    def allows_call(self) -> bool:
        """Whether to call now. While open, True for one caller each `open_s` seconds."""
        if not self._probe_s:
            return True
        now_s = self._now_s()
        if now_s < self._probe_s:
            return False
        self._probe_s = now_s + self._open_s
        return True

    def record(self, *, is_success: bool) -> None:
        """A call has succeeded or failed."""
        self._probe_s = 0.0 if is_success else self._now_s() + self._open_s
