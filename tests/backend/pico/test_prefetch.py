"""Worker processes compute the same data in the same order, and their exceptions are raised here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from backend.pico.prefetch import prefetched
from tests.backend.pico.processes import wait_until_gone

LEFT_ALONE = """
import multiprocessing, os, signal
from backend.pico.prefetch import prefetched
made = prefetched(lambda _: bytes(1 << 20), range(1000), 2)
next(made)  # the others wait in pipes that hold less than one of them
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_results_come_in_the_order_of_their_indices(workers: int) -> None:
    indices = [7, 3, 5, 1, 9, 0, 2, 8, 4, 6] * 4
    assert list(prefetched(lambda index: [(index, True)], indices, workers)) == [[(i, True)] for i in indices]


def test_results_come_from_that_many_workers() -> None:
    found = set(prefetched(lambda _: os.getpid(), range(12), 2))
    assert len(found) == 2
    assert os.getpid() not in found


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_is_raised_at_its_result(workers: int) -> None:
    def make(index: int) -> int:
        return 12 // (3 - index)

    made = prefetched(make, range(5), workers)
    assert [next(made) for _ in range(3)] == [4, 6, 12]
    with pytest.raises(ZeroDivisionError):
        next(made)


def test_workers_end_when_their_parent_is_killed() -> None:
    killed = subprocess.run([sys.executable, "-c", LEFT_ALONE], capture_output=True, text=True, check=False)
    children = [int(pid) for pid in killed.stdout.split()]
    assert len(children) == 2
    for child in children:
        wait_until_gone(child)
