"""Rank 0 ends within a moment of any other; they end with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

PARENT = """
import os, sys, time
from backend.parallel.children import Children
Children.command = ("sleep", "60")
children = Children(3, 1)
print(*children.pids, flush=True)
if sys.stdin.readline() == "close\\n":
    children.close(0.0)
    print("closed", flush=True)
    sys.exit(0)
"""
LIMIT_S = 60
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")


@pytest.fixture
def parent() -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PARENT], stdin=pipe, stdout=pipe, text=True)


def pids(parent: subprocess.Popen[str]) -> list[int]:
    assert parent.stdout is not None
    return [int(pid) for pid in parent.stdout.readline().split()]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_rank_that_dies_or_is_stopped_ends_all(parent: subprocess.Popen[str], sent: int) -> None:
    with parent:
        one, other = pids(parent)
        watched = os.pidfd_open(other)
        os.kill(one, sent)
        assert parent.wait(LIMIT_S) == 1
        poll = select.poll()
        poll.register(watched)
        assert poll.poll(LIMIT_S * 1000)  # readable when it has ended
        os.close(watched)


def test_ranks_that_are_told_to_end_end_nothing_else(parent: subprocess.Popen[str]) -> None:
    with parent:
        assert len(pids(parent)) == 2
        assert parent.communicate("close\n", LIMIT_S)[0] == "closed\n"
    assert parent.returncode == 0
