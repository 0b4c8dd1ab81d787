"""Ends every process that the tests have started, and theirs, when the tests end, also by kill -9.

A small process waits for the end of the one that called `end_with_this_process`. It knows what to end by
an environment variable, which children inherit, even in a process group or session of their own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

PAUSE_S = 0.05


def end_with_this_process() -> None:
    """Mark all later children of this process, and end those that outlive it."""
    mark = f"STARTED_BY_TESTS_{os.getpid()}_{secrets.token_hex(4)}"
    command = [sys.executable, "-I", __file__, str(os.getpid()), mark]
    watch = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    watch.returncode = 0  # outlives this process, which therefore never waits for it
    os.environ[mark] = "1"


def started_with(mark: str) -> list[int]:
    """The ids of processes that have this environment variable."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{mark}=".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def end_all(mark: str) -> None:
    """Kill them until two looks in a row find none: during `exec` a process has no environment."""
    num_empty = 0
    while num_empty < 2:
        pids = started_with(mark)
        num_empty = 0 if pids else num_empty + 1
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)


def main() -> None:
    pid, mark = int(sys.argv[1]), sys.argv[2]
    with contextlib.suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])  # readable at its end
    end_all(mark)


if __name__ == "__main__":
    main()
