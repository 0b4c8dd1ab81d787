"""When a process that has failed starts again: exponential backoff, and failures that repeat."""

from __future__ import annotations

import re
import time

from gateway.processes.status import RepeatedFailure

FIRST_BACKOFF_S = 0.2
LAST_BACKOFF_S = 30.0
"""Longest wait for a process that fails before it is ready: it will probably fail again."""
LAST_BACKOFF_READY_S = 5.0
"""Longest wait for a process that was ready."""
STABLE_AFTER_S = 30.0
"""After being ready this long a process has recovered: it restarts with the first backoff again."""
REPEATED = 3
"""Failures in a row with one cause after which /health/ready shows them."""

_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?")


class Restarts:
    """The failures of one process in a row, and the wait after each."""

    def __init__(self) -> None:
        self.repeated: RepeatedFailure | None = None  # the last one, if it came often enough
        self._cause = ""
        self._count = 0
        self._backoff_s = FIRST_BACKOFF_S

    def failed(self, cause: str, ready_s: float | None) -> float:
        """The process has ended; returns the seconds to wait. `ready_s`: how long it was ready, if it was."""
        if ready_s is not None and ready_s >= STABLE_AFTER_S:
            self._count, self._backoff_s = 0, FIRST_BACKOFF_S
        self._count = self._count + 1 if _kind(cause) == _kind(self._cause) else 1
        self._cause = cause
        wait_s = min(self._backoff_s, LAST_BACKOFF_S if ready_s is None else LAST_BACKOFF_READY_S)
        self._backoff_s = 2 * wait_s
        self.repeated = None
        if self._count >= REPEATED:
            self.repeated = RepeatedFailure(cause=cause, count=self._count, retry_at_s=time.time() + wait_s)
        return wait_s


def _kind(cause: str) -> str:
    """The cause without numbers: addresses, sizes and process ids differ from failure to failure."""
    return _VARIABLE.sub("#", cause)
