"""How long a target takes to its first content, with more weight on its worst and its latest."""

from __future__ import annotations

import math
from collections.abc import Callable

DECAY_S = 10.0
FAILED_DECAY_S = 2.0
"""A failure is forgotten sooner: what works again is measured again."""
FAILED_FACTOR = 2.0
MIN_FAILED_S = 1.0
"""A failure counts as at least this slow: one that is refused at once must not look fast."""
MIN_WAITED_S = 0.1
"""A client that leaves sooner says nothing about a target that was never measured."""


class PeakLatency:
    """Moving mean that a higher value replaces at once, and that falls while nothing is measured."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._value_s = 0.0
        self._at_s = 0.0
        self._decay_s = DECAY_S
        self.is_measured = False

    def value_s(self) -> float:
        """The latency of now; 0.0 before the first measure."""
        return self._value_s * math.exp((self._at_s - self._clock()) / self._decay_s)

    def answered(self, took_s: float) -> None:
        """An answer began after this time."""
        before_s, kept = self._value_s, math.exp((self._at_s - self._clock()) / DECAY_S)
        is_first = not self.is_measured or self._decay_s != DECAY_S  # also the first one after failures
        is_peak = is_first or took_s > before_s * kept
        self._set(took_s if is_peak else before_s * kept + took_s * (1.0 - kept))

    def failed(self, took_s: float) -> None:
        """A call failed after this time."""
        self._set(max(MIN_FAILED_S, took_s, FAILED_FACTOR * self.value_s()), FAILED_DECAY_S)

    def waited(self, took_s: float) -> None:
        """Nothing came for this long, and nothing waits any more."""
        if took_s > (self.value_s() if self.is_measured else MIN_WAITED_S):
            self._set(took_s if self.is_measured else max(took_s, MIN_FAILED_S))

    def _set(self, value_s: float, decay_s: float = DECAY_S) -> None:
        self._value_s, self._at_s, self._decay_s, self.is_measured = value_s, self._clock(), decay_s, True
