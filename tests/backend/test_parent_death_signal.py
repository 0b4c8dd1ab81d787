from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from backend.parent_death_signal import die_with

PARENT = """
import os, subprocess, sys
from backend.parent_death_signal import die_with
child = subprocess.Popen(["sleep", "60"], preexec_fn=die_with(os.getpid()))
print(child.pid, flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")


def test_a_child_is_killed_with_its_parent() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.send_signal(signal.SIGKILL)
            parent.wait(10)
            poll = select.poll()
            poll.register(child)
            assert poll.poll(10_000)  # readable when it has ended
        finally:
            os.close(child)


def test_a_child_whose_parent_is_already_gone_ends_at_once() -> None:
    with subprocess.Popen(["sleep", "60"], preexec_fn=die_with(1 << 30)) as child:
        try:
            assert child.wait(10) == 1
        finally:
            child.kill()
