"""Nothing that a test starts outlives the tests, however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import subprocess, sys, time
from tests.orphans import end_with_this_process
end_with_this_process()
child = 'import subprocess; p = subprocess.Popen(["sleep", "900"], start_new_session=True); print(p.pid){end}'
subprocess.Popen([sys.executable, "-uc", child.format(end="; p.wait()")], start_new_session=True)
subprocess.Popen([sys.executable, "-uc", child.format(end="")])  # the grandchild's parent ends at once
time.sleep(900)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_children_of_children_in_sessions_of_their_own_end(number: int) -> None:
    command = [sys.executable, "-c", TESTS]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as killed:
        assert killed.stdout is not None
        try:
            sleeping = [int(killed.stdout.readline()) for _ in range(2)]
            killed.send_signal(number)
            # The pipe is at its end when no process writes to it any more.
            assert killed.stdout.read() == b""
        finally:
            killed.kill()
    deadline_s = time.monotonic() + 30
    while any(map(_is_alive, sleeping)):
        assert time.monotonic() < deadline_s, f"still there: {sleeping}"


def _is_alive(pid: int) -> bool:
    """True unless it ended; a zombie has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
