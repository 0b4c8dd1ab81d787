"""Tells a hung process from a busy one: silent without using the processor is hung, silent at work is not."""

from __future__ import annotations

import os
from pathlib import Path

SILENT_AFTER_S = 2.5
"""Several heartbeats have been missed."""
HUNG_AFTER_S = 1.0
"""Silent, and idle for this long: the process is hung."""
HUNG_BUSY_AFTER_S = 120.0
"""Silent, but working: a step may be that long on a slow machine, an endless loop is longer."""
WORKING_CPU_SHARE = 0.05


class HangDetector:
    """Fed with what is seen of one process, every second or so."""

    def __init__(self) -> None:
        self._since_s: float | None = None  # when it was first seen silent and idle
        self._silent_since_s: float | None = None
        self._last: tuple[int, float, float] | None = None  # pid, time, processor seconds

    def poll(self, pid: int, heartbeat_age_s: float, now_s: float) -> bool:
        """Take an observation; True when the process is hung. Call only after it has been ready once."""
        works = self._works(pid, now_s)
        if heartbeat_age_s < SILENT_AFTER_S:
            self._since_s = self._silent_since_s = None
            return False
        if self._silent_since_s is None:
            self._silent_since_s = now_s
        if works:
            self._since_s = None
            return now_s - self._silent_since_s > HUNG_BUSY_AFTER_S
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= HUNG_AFTER_S

    def reset(self) -> None:
        """Forget: a new process has been started."""
        self._since_s = self._silent_since_s = self._last = None

    def _works(self, pid: int, now_s: float) -> bool:
        """True when it used the processor since the last call, or now waits for it or for a disk."""
        usage = _usage(pid)
        if usage is None:
            return False
        cpu_s, is_waiting = usage
        last, self._last = self._last, (pid, now_s, cpu_s)
        if last is None or last[0] != pid:
            return True
        return is_waiting or cpu_s - last[2] > WORKING_CPU_SHARE * (now_s - last[1])


def _usage(pid: int) -> tuple[float, bool] | None:
    """Return processor seconds of a process and whether it waits for a processor or a disk; None: unknown."""
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
        states = {_fields(thread)[0] for thread in Path(f"/proc/{pid}/task").glob("*/stat")}
    except OSError:  # not Linux, or it (or a thread of it) has just ended
        return None
    # R is also a thread that other work keeps from its processor: starved, not hung. D waits for a disk.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), bool(states & {"R", "D"})


def _fields(stat: Path) -> list[str]:
    """Split a stat file of /proc behind the command's name, which may hold anything."""
    return stat.read_text().rpartition(")")[2].split()
