"""Reads a container's quota of CPU time, which torch and ONNX Runtime do not: they count the host's cores."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cpu_quota(cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Cores that the quota pays for, rounded up; None where it pays for all that this process may use."""
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):  # of cgroups 2, of 1
        with suppress(OSError, ValueError):  # "max"
            quota, period = (int(word) for name in names for word in (cgroups / name).read_text().split())
            cores = -(-quota // period)
            return cores if 0 < cores < len(os.sched_getaffinity(0)) else None
    return None
