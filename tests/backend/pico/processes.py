"""Waiting for processes that are not children."""

from __future__ import annotations

import time
from pathlib import Path

LONGEST_S = 20.0


def wait_until_gone(pid: int) -> None:
    """Wait until the process has ended, reaped or not."""
    deadline_s = time.monotonic() + LONGEST_S
    while _runs(pid):
        assert time.monotonic() < deadline_s, f"process {pid} still runs"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
