"""Two clocks for work of this process: what a user waits, and what the processor worked for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple


class Seconds(NamedTuple):
    """How long something took."""

    wall: float
    processor: float  # of all threads; other work on the machine hardly moves it


class Stopwatch:
    """Runs from the moment it is made."""

    def __init__(self) -> None:
        self._wall_s, self._processor_s = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        """Since it was made."""
        return Seconds(time.perf_counter() - self._wall_s, time.process_time() - self._processor_s)


def median_and_quartiles(values: Sequence[float]) -> str:
    """Such as "0.98 (0.95 to 1.02)": the median, and between which values half of all lie."""
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
