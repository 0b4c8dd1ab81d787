"""Processes that end with their parent, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with(parent_pid: int) -> Callable[[], None]:
    """What a new process calls first: the kernel kills it when `parent_pid`, its parent, dies. Linux only."""

    def ask_the_kernel() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent_pid:  # it died before the kernel knew
                os._exit(1)

    return ask_the_kernel
