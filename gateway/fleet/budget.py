"""Bounds retries by the calls that are made anyway, so that they cannot multiply an overload."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.fleet.hedging import Waits
from gateway.fleet.window import Window

WINDOW_S = 60
ALWAYS_PER_S = 3
"""Retries that a quiet upstream may have."""


class RetryBudget:
    """Counts the calls and retries of one model over the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._window = Window(WINDOW_S, clock)
        self.waits = {True: Waits(), False: Waits()}  # of streams, and of whole answers

    def count_call(self) -> None:
        """A request asks the model for the first time."""
        self._window.add(calls=1)

    def try_take(self, share: float) -> bool:
        """Whether a retry is allowed, which it then counts: up to `share` of the calls, and 3 per second."""
        window = self._window
        if window.now().marked >= ALWAYS_PER_S and window.marked + 1 > share * window.calls:
            return False
        window.add(marked=1)
        return True
