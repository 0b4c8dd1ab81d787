"""Cells of several workers add up; a dead worker's counters stay and its gauges go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gateway.telemetry.shared_counters import Cells

WORKER = (
    "import sys; from pathlib import Path; from gateway.telemetry.shared_counters import Cells;"
    "c = Cells(3, Path(sys.argv[1]), 'layout'); c.values[0] = 5; c.values[1] = 7;"
    "print('ready', flush=True); sys.stdin.read()"
)


def test_private_cells_are_their_own_total() -> None:
    cells = Cells(3)
    cells.values[1] += 2.5
    assert cells.totals(slice(0, 1)) == [0.0, 2.5, 0.0]
    cells.close()


def test_workers_add_up_and_the_dead_keep_only_counters(tmp_path: Path) -> None:
    cells = Cells(3, tmp_path, "layout")
    cells.values[0] = 1
    cells.values[1] = 10
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with worker:
        assert worker.stdout is not None and worker.stdin is not None
        assert worker.stdout.readline() == b"ready\n"
        assert cells.totals(slice(0, 1)) == [6.0, 17.0, 0.0]
        worker.kill()
        worker.wait()
    assert cells.totals(slice(0, 1)) == [1.0, 17.0, 0.0]
    cells.close()


def test_other_layouts_and_half_made_files_do_not_count(tmp_path: Path) -> None:
    cells = Cells(2, tmp_path, "a")
    other = Cells(2, tmp_path, "b")
    other.values[0] = 3
    (tmp_path / "a.1.cells").write_bytes(b"12345")
    assert cells.totals(slice(0, 0)) == [0.0, 0.0]
    cells.close()
    other.close()


def test_files_are_private(tmp_path: Path) -> None:
    Cells(1, tmp_path, "a").close()
    assert (tmp_path / f"a.{os.getpid()}.cells").stat().st_mode & 0o777 == 0o600
