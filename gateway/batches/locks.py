"""Which process runs which batch: locks on single bytes of a file, which end with the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class BatchLocks:
    """Locks of this process. Only one object per process may open the file: closing it releases all."""

    def __init__(self, folder: str) -> None:
        """`folder`: where the file is, or will be."""
        self._path = Path(folder, "batches.lock")
        self._fd = -1

    def try_take(self, number: int) -> bool:
        """Lock a batch; False when another process has it. Raises OSError."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):  # POSIX allows both
            return False
        return True

    def release(self, number: int) -> None:
        """Unlock a batch that this process has locked."""
        with contextlib.suppress(OSError):
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        """Unlock everything."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
