"""Child processes that the kernel kills when their parent dies: prctl(PR_SET_PDEATHSIG), Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with(parent_pid: int) -> Callable[[], None]:
    """A function for a new process to call first (`preexec_fn`): SIGKILL it when `parent_pid` dies."""

    def ask_the_kernel() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent_pid:  # the parent died before the call above
                os._exit(1)

    return ask_the_kernel
