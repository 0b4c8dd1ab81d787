"""Counters of several workers add up; a dead worker's counters stay and its gauges do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gateway.telemetry.shared_counters import SharedCounters

WORKER = (
    "import sys; from pathlib import Path; from gateway.telemetry.shared_counters import SharedCounters;"
    "c = SharedCounters(3, Path(sys.argv[1]), 'layout'); c.values[0] = 5; c.values[1] = 7;"
    "print('ready', flush=True); sys.stdin.read()"
)


def test_private_counters_are_their_own_total() -> None:
    counters = SharedCounters(3)
    counters.values[1] += 2.5
    assert counters.totals(slice(0, 1)) == [0.0, 2.5, 0.0]
    counters.close()


def test_workers_add_up_and_dead_ones_keep_only_counters(tmp_path: Path) -> None:
    counters = SharedCounters(3, tmp_path, "layout")
    counters.values[0] = 1
    counters.values[1] = 10
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with worker:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == b"ready\n"
        assert counters.totals(slice(0, 1)) == [6.0, 17.0, 0.0]
        worker.kill()
        worker.wait()
    assert counters.totals(slice(0, 1)) == [1.0, 17.0, 0.0]
    counters.close()


def test_other_layouts_and_incomplete_files_do_not_count(tmp_path: Path) -> None:
    counters = SharedCounters(2, tmp_path, "a")
    other = SharedCounters(2, tmp_path, "b")
    other.values[0] = 3
    (tmp_path / "a.1.counters").write_bytes(b"12345")
    assert counters.totals(slice(0, 0)) == [0.0, 0.0]
    counters.close()
    other.close()


def test_files_are_private(tmp_path: Path) -> None:
    SharedCounters(1, tmp_path, "a").close()
    assert (tmp_path / f"a.{os.getpid()}.counters").stat().st_mode & 0o777 == 0o600
