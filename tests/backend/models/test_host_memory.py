"""Freed blocks stay in the process, so that allocating them again costs no page faults."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from backend.models.host_memory import keep_freed_memory
assert keep_freed_memory()
for _ in range(20):  # until the heap has found its shape
    torch.ones(12_000_000)  # 48 MB, freed at once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(12_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_large_blocks_are_reused() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    one_round = 48_000_000 // resource.getpagesize()
    assert int(done.stdout) < one_round
