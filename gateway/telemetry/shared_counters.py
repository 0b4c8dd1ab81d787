"""Counters of one worker in a flat float64 array, in memory or in a mapped file that other workers can read.

A worker writes only its own file, and only from its event loop, so no lock is needed; a scrape sums the
files. Counters of a dead worker stay in the sum, because counters must not decrease; its gauges do not.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import psutil

COUNTER_BYTES = 8


class SharedCounters:
    """`size` float64 counters of this worker, and the sums over all workers that share `directory`."""

    __slots__ = ("_directory", "_layout", "_map", "values")

    def __init__(self, size: int, directory: Path | None = None, layout: str = "") -> None:
        """`layout` identifies what each index means: only files of one layout are summed. Raises OSError."""
        self._directory = directory
        self._layout = layout
        self._map: mmap.mmap | None = None
        self.values: memoryview[float]
        if directory is None:
            self.values = memoryview(array("d", bytes(size * COUNTER_BYTES)))
            return
        path = directory / f"{layout}.{os.getpid()}.counters"
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.truncate(size * COUNTER_BYTES)
            self._map = mmap.mmap(file.fileno(), size * COUNTER_BYTES)
        self.values = memoryview(self._map).cast("d")

    def totals(self, gauges: slice) -> list[float]:
        """Every counter summed over the workers; the `gauges` only over living ones."""
        if self._directory is None:
            return list(self.values)
        sums = [0.0] * len(self.values)
        for pid, values in self._read_all(self._directory):
            if not psutil.pid_exists(pid):
                values[gauges] = [0.0] * len(values[gauges])
            sums = [a + b for a, b in zip(sums, values, strict=True)]
        return sums

    def close(self) -> None:
        """Unmap the file. It remains part of the other workers' sums."""
        self.values.release()
        if self._map is not None:
            self._map.close()

    def _read_all(self, directory: Path) -> Iterator[tuple[int, list[float]]]:
        for path in directory.glob(f"{self._layout}.*.counters"):
            content = path.read_bytes()
            if len(content) == len(self.values) * COUNTER_BYTES:  # shorter: another worker is creating it
                yield int(path.name.split(".")[1]), list(array("d", content))
