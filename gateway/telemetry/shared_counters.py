"""Counters of one worker in a flat float64 array, in its own memory or in memory that all workers map.

Each worker has a file without a name, made by the supervisor, and all workers inherit all of them. A worker
writes only its own, and only from its event loop, so no lock is needed; a scrape sums the files. A restarted
worker continues its predecessor's counters, because counters must not decrease; its gauges start at 0.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import psutil
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

COUNTER_BYTES = 8


def new_counter_file() -> int:
    """The descriptor of an empty file without a name: in memory, or where that is unknown on the disk."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock-counters")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedCounters:
    """`size` float64 counters of this worker, and the sums over all workers.

    The first `num_gauges` are gauges: those of a worker that has ended do not count.
    """

    __slots__ = ("_fds", "_map", "_num_gauges", "values")

    def __init__(self, size: int, num_gauges: int, fds: Sequence[int] = (), worker: int = 0) -> None:
        """`fds` are the counter files of all workers, ours at index `worker`; none: counters are private."""
        self._num_gauges = num_gauges
        self._fds: Sequence[int] = ()
        self._map: mmap.mmap | None = None
        self.values: memoryview[float]
        if fds:
            try:
                self._map = _map_counters(fds[worker], size)
            except OSError as error:  # no memory, or a limit on the size of files
                logger.error(
                    "the counters of worker %d are not shared, /metrics is partial: %s", worker, error
                )
        if self._map is None:
            self.values = memoryview(array("d", bytes(size * COUNTER_BYTES)))
            return
        self._fds = fds
        content = memoryview(self._map).cast("d")
        content[0] = os.getpid()
        self.values = content[1:]
        self.values[:num_gauges] = memoryview(array("d", bytes(num_gauges * COUNTER_BYTES)))

    def totals(self) -> list[float]:
        """Every counter, summed over the workers."""
        if not self._fds:
            return list(self.values)
        sums = np.zeros(len(self.values))
        for pid, values in self._read_all():
            start = 0 if psutil.pid_exists(pid) else self._num_gauges
            sums[start:] += values[start:]
        found: list[float] = sums.tolist()
        return found

    def gauges(self, count: int) -> list[tuple[int, list[float]]]:
        """The process and the first `count` counters of each worker; without reading the others."""
        if not self._fds:
            return [(os.getpid(), list(self.values[:count]))]
        found = []
        for fd in self._fds:
            content = array("d", os.pread(fd, (1 + count) * COUNTER_BYTES, 0)) or [0.0]
            found.append((int(content[0]), list(content[1:])))
        return found

    def close(self) -> None:
        """Unmap the file. It remains part of the other workers' sums."""
        self.values.release()
        if self._map is not None:
            self._map.close()

    def _read_all(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        num_bytes = (1 + len(self.values)) * COUNTER_BYTES
        for fd in self._fds:
            content = os.pread(fd, num_bytes, 0)
            if len(content) == num_bytes:  # shorter: its worker has not created it
                values = np.frombuffer(content)
                yield int(values[0]), values[1:]


def _map_counters(fd: int, size: int) -> mmap.mmap:
    """Map a file with a process id and `size` counters. Raises OSError when there is no space for it.

    The space is allocated now: access to a page that cannot be allocated later would be a SIGBUS.
    """
    num_bytes = (1 + size) * COUNTER_BYTES
    have = os.fstat(fd).st_size
    if have < num_bytes and os.pwrite(fd, bytes(num_bytes - have), have) < num_bytes - have:
        raise OSError("not enough space for the counters")
    return mmap.mmap(fd, num_bytes)
