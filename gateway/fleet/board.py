"""Which targets are left out, in memory that all workers map: what one finds out all of them know at once."""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
from array import array

logger = logging.getLogger(__name__)

NUM_SLOTS = 1024
MAX_TRIES = 8
"""Slots that a name may have. One that finds no free one among them is not shared."""
_SLOT_VALUES = 3
NUM_BYTES = NUM_SLOTS * _SLOT_VALUES * 8


class Slot:
    """Until when one target is left out, and a number that says why; 0: it is not.

    Values are written one by one, without a lock: at worst another worker sees them a moment later.
    """

    __slots__ = ("_at", "_key", "_values")

    def __init__(self, values: memoryview[float], at: int, key: float) -> None:
        self._values = values
        self._at = at
        self._key = key

    def read(self) -> tuple[float, int]:
        """The latest that any worker has written."""
        if self._values[self._at] != self._key:  # two names were given it at the same time
            return 0.0, 0
        return self._values[self._at + 1], int(self._values[self._at + 2])

    def write(self, until_s: float, why: int) -> None:
        """Tell all workers. `until_s` is of time.monotonic(), which processes share."""
        if self._values[self._at] == self._key:
            self._values[self._at + 1], self._values[self._at + 2] = until_s, float(why)


class Board:
    """All slots."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: a file that all workers have; None: the memory of this one."""
        self._values: memoryview[float] = memoryview(array("d", bytes(NUM_BYTES)))
        if fd is not None:
            try:
                self._values = memoryview(_mapped(fd)).cast("d")
            except OSError as error:  # no memory, or a limit on the size of files
                logger.error("workers do not share which upstreams fail: %s", error)

    def slot(self, name: str) -> Slot | None:
        """The slot of a target; None where there is no free one."""
        digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        key = float(1 + (digest >> 12))  # exact in a float64, and never 0
        for number in range(MAX_TRIES):
            at = (digest + number) % NUM_SLOTS * _SLOT_VALUES
            if self._values[at] == 0.0:
                self._values[at] = key
            if self._values[at] == key:
                return Slot(self._values, at, key)
        return None


def _mapped(fd: int) -> mmap.mmap:
    """The file, whose space is allocated now: a page that cannot be allocated later would be a SIGBUS."""
    have = os.fstat(fd).st_size
    if have < NUM_BYTES and os.pwrite(fd, bytes(NUM_BYTES - have), have) < NUM_BYTES - have:
        raise OSError("not enough space for them")
    return mmap.mmap(fd, NUM_BYTES)
