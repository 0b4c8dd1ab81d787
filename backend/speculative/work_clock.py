"""The clock by which drafts are weighed against steps without."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def work_clock(device: torch.device) -> Callable[[], float]:
    """Seconds that go by while this thread works on `device`.

    Where one thread of the processor does everything it is that thread's own time: another process that takes
    the core for a while must not look like the price of drafts.
    """
    is_alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if is_alone else time.perf_counter
