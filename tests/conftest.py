"""Before anything imports torch: one thread, here and in every process that a test starts."""

from __future__ import annotations

import os

# Tiny models gain nothing from threads, and lose much where other processes use the cores.
os.environ["OMP_NUM_THREADS"] = "1"
