"""Numbers of one worker in a flat float64 array, in memory or in a file that the other workers may read.

Each worker writes only its own file and only from its event loop, so no lock is needed; a scrape adds the
files up. Counters of a dead worker keep counting (they never go down); its gauges are left out.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

CELL_BYTES = 8


class Cells:
    """`size` float64 cells of this worker, and the sums over all workers that share `directory`."""

    __slots__ = ("_directory", "_layout", "_map", "values")

    def __init__(self, size: int, directory: Path | None = None, layout: str = "") -> None:
        """`layout` names what the cells mean: only files of one layout are added up. OSError from disk."""
        self._directory = directory
        self._layout = layout
        self._map: mmap.mmap | None = None
        self.values: memoryview[float]
        if directory is None:
            self.values = memoryview(array("d", bytes(size * CELL_BYTES)))
            return
        path = directory / f"{layout}.{os.getpid()}.cells"
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            file.truncate(size * CELL_BYTES)
            self._map = mmap.mmap(file.fileno(), size * CELL_BYTES)
        self.values = memoryview(self._map).cast("d")

    def totals(self, gauges: slice) -> list[float]:
        """Every cell summed over the workers; cells in `gauges` only over those that live."""
        if self._directory is None:
            return list(self.values)
        sums = [0.0] * len(self.values)
        for pid, values in self._read_all(self._directory):
            if not _is_alive(pid):
                values[gauges] = [0.0] * len(values[gauges])
            sums = [a + b for a, b in zip(sums, values, strict=True)]
        return sums

    def close(self) -> None:
        """Unmap the file; it stays for the others to count."""
        self.values.release()
        if self._map is not None:
            self._map.close()

    def _read_all(self, directory: Path) -> Iterator[tuple[int, list[float]]]:
        for path in directory.glob(f"{self._layout}.*.cells"):
            content = path.read_bytes()
            if len(content) == len(self.values) * CELL_BYTES:  # shorter: another worker is just making it
                yield int(path.name.split(".")[1]), list(array("d", content))


def _is_alive(pid: int) -> bool:
    """True while a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
