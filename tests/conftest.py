"""One OpenMP thread, set before torch is imported, here and in every process that a test starts."""

from __future__ import annotations

import os

# Tiny models do not gain from threads, and lose much when other processes use the cores.
os.environ["OMP_NUM_THREADS"] = "1"
