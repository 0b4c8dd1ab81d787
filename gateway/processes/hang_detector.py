"""Detects hung processes: no heartbeat and no CPU use. A process in a long step uses CPU and is not hung."""

from __future__ import annotations

import psutil

SILENT_AFTER_S = 2.5
"""Heartbeat age from which a process is silent: it has missed several."""
HUNG_AFTER_S = 1.0
"""A silent process that is idle this long is hung."""
HUNG_BUSY_AFTER_S = 120.0
"""A silent process that works this long is hung: longer than any step, so an endless loop."""
WORKING_CPU_SHARE = 0.05
"""Share of one core above which a process works."""


class HangDetector:
    """Judges one process from periodic samples of its heartbeat age and CPU time."""

    def __init__(self) -> None:
        self._idle_since_s: float | None = None  # silent and idle since
        self._silent_since_s: float | None = None
        self._last: tuple[int, float, float] | None = None  # pid, time, CPU seconds

    def poll(self, pid: int, heartbeat_age_s: float, now_s: float) -> bool:
        """Take a sample; True when the process is hung. Only for a process that has been ready once."""
        works = self._works(pid, now_s)
        if heartbeat_age_s < SILENT_AFTER_S:
            self._idle_since_s = self._silent_since_s = None
            return False
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if works:
            self._idle_since_s = None
            return now_s - self._silent_since_s > HUNG_BUSY_AFTER_S
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        return now_s - self._idle_since_s >= HUNG_AFTER_S

    def reset(self) -> None:
        """Forget all samples: a new process has started."""
        self._idle_since_s = self._silent_since_s = self._last = None

    def _works(self, pid: int, now_s: float) -> bool:
        """True when the process used CPU since the last sample, or waits for a CPU or a disk now."""
        usage = _usage(pid)
        if usage is None:
            return False
        cpu_s, is_waiting = usage
        last, self._last = self._last, (pid, now_s, cpu_s)
        if last is None or last[0] != pid:
            return True
        return is_waiting or cpu_s - last[2] > WORKING_CPU_SHARE * (now_s - last[1])


def _usage(pid: int) -> tuple[float, bool] | None:
    """CPU seconds of a process, and whether a thread of it runs or waits for a CPU or disk; None: unknown."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        # A process has its main thread's state; on Linux a thread's own is found under its id.
        states = {psutil.Process(thread.id).status() for thread in process.threads()}
    except psutil.Error:  # it, or a thread of it, has just ended
        return None
    is_waiting = bool(states & {psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP})
    return times.user + times.system, is_waiting
