"""Ends work on a long text, in a thread, when nothing waits for it any more."""

from __future__ import annotations

import threading

_CURRENT = threading.local()


class Cancelled(Exception):
    """Nothing waits for this result."""


def use_flag(flag: threading.Event | None) -> None:
    """From now on `check_cancelled` in this thread looks at `flag`."""
    _CURRENT.flag = flag


def check_cancelled() -> None:
    """Raise Cancelled once the flag of this thread is set; to be called between the pieces of a text."""
    flag: threading.Event | None = getattr(_CURRENT, "flag", None)
    if flag is not None and flag.is_set():
        raise Cancelled
