"""Wall time and CPU time of work in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple


class Seconds(NamedTuple):
    """A measured duration, in seconds."""

    wall: float
    processor: float  # CPU time of all threads; hardly affected by other load


class Stopwatch:
    """Runs from its construction."""

    def __init__(self) -> None:
        self._wall_s, self._processor_s = time.perf_counter(), time.process_time()

    def read(self) -> Seconds:
        """Time since construction."""
        return Seconds(time.perf_counter() - self._wall_s, time.process_time() - self._processor_s)


def median_and_quartiles(values: Sequence[float]) -> str:
    """The median and the quartiles, such as "0.98 (0.95 to 1.02)"."""
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
