"""One OpenMP thread, here and in every process that a test starts, and no deadlines.

Hypothesis would fail an example for taking 200 ms, which says more about the machine than about the code.
"""

from __future__ import annotations

import os

from hypothesis import settings

# Tiny models do not gain from threads, and lose much when other processes use the cores.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("penstock", deadline=None)
settings.load_profile("penstock")
