"""How often a key was asked for recently, in a fixed number of bytes: TinyLFU's aging count-min sketch.

Einziger, Friedman, Manes: TinyLFU, arXiv 1512.00727.
"""

from __future__ import annotations

ROWS = 4
MAX_COUNT = 15


class FrequencySketch:
    """Counts up to 15; all counts are halved after ten records per counter, so that old ones fade."""

    def __init__(self, width: int = 1 << 14) -> None:
        """`width`: counters per row, a power of two."""
        self._mask = width - 1
        self._rows = [bytearray(width) for _ in range(ROWS)]
        self._records_left = self._period = 10 * width

    def record(self, key: bytes) -> None:
        """Count one request for `key`, of at least 16 random bytes."""
        for row, place in zip(self._rows, self._places(key), strict=True):
            if row[place] < MAX_COUNT:
                row[place] += 1
        self._records_left -= 1
        if not self._records_left:
            self._rows = [bytearray(count >> 1 for count in row) for row in self._rows]
            self._records_left = self._period

    def estimate(self, key: bytes) -> int:
        """The recent number of requests for `key`, or more when keys collide."""
        return min(row[place] for row, place in zip(self._rows, self._places(key), strict=True))

    def _places(self, key: bytes) -> list[int]:
        return [int.from_bytes(key[4 * row : 4 * row + 4], "little") & self._mask for row in range(ROWS)]
