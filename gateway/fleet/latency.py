"""How long a target takes to its first content, with more weight on its worst and its latest."""

from __future__ import annotations

import math
from collections.abc import Callable

DECAY_S = 10.0
FAILED_FACTOR = 2.0
MIN_FAILED_S = 1.0
"""A failure counts as at least this slow: one that is refused at once must not look fast."""


class PeakLatency:
    """Moving mean that a higher value replaces at once, and that falls while nothing is measured."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._value_s = 0.0
        self._at_s = 0.0
        self.is_measured = False

    def value_s(self) -> float:
        """The latency of now; 0.0 before the first measure."""
        return self._value_s * math.exp((self._at_s - self._clock()) / DECAY_S)

    def answered(self, took_s: float) -> None:
        """An answer began after this time."""
        before_s, kept = self._value_s, math.exp((self._at_s - self._clock()) / DECAY_S)
        is_peak = not self.is_measured or took_s > before_s * kept
        self._set(took_s if is_peak else before_s * kept + took_s * (1.0 - kept))

    def failed(self, took_s: float) -> None:
        """A call failed after this time."""
        self._set(max(MIN_FAILED_S, took_s, FAILED_FACTOR * self.value_s()))

    def _set(self, value_s: float) -> None:
        self._value_s, self._at_s, self.is_measured = value_s, self._clock(), True
