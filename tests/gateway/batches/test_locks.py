"""Locks between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gateway.batches.locks import BatchLocks

HOLDER = """
import sys
from gateway.batches.locks import BatchLocks
locks = BatchLocks(sys.argv[1])
print(locks.try_take(1), locks.try_take(2), flush=True)
sys.stdin.read()
"""


def test_another_process_has_them_until_it_is_killed(tmp_path: Path) -> None:
    ours = BatchLocks(str(tmp_path))
    assert ours.try_take(2)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"True False\n"
        assert not ours.try_take(1)
        holder.kill()
        holder.wait()
        assert ours.try_take(1)
    ours.close()


def test_a_released_lock_can_be_taken(tmp_path: Path) -> None:
    ours = BatchLocks(str(tmp_path))
    assert ours.try_take(1)
    ours.release(1)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert done.stdout == b"True True\n"
    ours.close()
