"""Counters of several workers add up; a dead worker's counters stay and its gauges do not."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.telemetry import shared_counters
from gateway.telemetry.shared_counters import SharedCounters, new_counter_file

WORKER = """
import sys
from gateway.telemetry.shared_counters import SharedCounters

counters = SharedCounters(3, 1, [int(fd) for fd in sys.argv[1:]], 1)
counters.values[0] += 5
counters.values[1] += 7
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def fds() -> Iterator[list[int]]:
    made = [new_counter_file(), new_counter_file()]
    yield made
    for fd in made:
        os.close(fd)


def test_private_counters_are_their_own_total() -> None:
    counters = SharedCounters(3, 1)
    counters.values[1] += 2.5
    assert counters.totals() == [0.0, 2.5, 0.0]
    assert counters.gauges(2) == [(os.getpid(), [0.0, 2.5])]
    counters.close()


def test_workers_add_up_and_dead_ones_keep_only_counters(fds: list[int]) -> None:
    counters = SharedCounters(3, 1, fds, 0)
    assert counters.totals() == [0.0] * 3, "the other worker has not started"
    assert counters.gauges(1) == [(os.getpid(), [0.0]), (0, [])]
    counters.values[0] = 1
    counters.values[1] = 10
    for restarts in range(2):
        command = [sys.executable, "-c", WORKER, *map(str, fds)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=fds) as worker:
            assert worker.stdout is not None and worker.stdin is not None
            assert worker.stdout.readline() == b"ready\n"
            assert counters.totals() == [6.0, 17.0 + 7 * restarts, 0.0]
            assert counters.gauges(1) == [(os.getpid(), [1.0]), (worker.pid, [5.0])]
            worker.kill()
            worker.wait()
        assert counters.totals() == [1.0, 17.0 + 7 * restarts, 0.0]
    counters.close()


def test_without_space_a_worker_counts_alone(fds: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """A mapped page that cannot be allocated would be a SIGBUS; the limit stands for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        counters = SharedCounters(10_000, 1, fds, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    counters.values[:] = counters.values
    counters.values[9_999] = 3
    assert counters.totals()[9_999] == 3
    assert "worker 0 are not shared" in caplog.text and len(caplog.records) == 1
    counters.close()


def test_every_page_is_allocated_at_the_start(fds: list[int]) -> None:
    counters = SharedCounters(10_000, 1, fds, 0)
    assert os.fstat(fds[0]).st_blocks * 512 >= 80_000
    counters.close()


def test_files_without_memfd_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(shared_counters.os, "memfd_create")
    fd = new_counter_file()
    assert os.fstat(fd).st_nlink == 0
    counters = SharedCounters(1, 0, [fd])
    counters.values[0] = 4
    assert counters.totals() == [4.0]
    counters.close()
    os.close(fd)
