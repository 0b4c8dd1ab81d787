"""A limit on the time that reading policies may take: texts from a network may be made to take long."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from policies.errors import Place, PolicyError, Problem

_LIMIT: ContextVar[tuple[float, float]] = ContextVar("_LIMIT", default=(math.inf, math.inf))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let `check_time` raise, in this thread or task, once so much time has passed."""
    token = _LIMIT.set((time.monotonic() + seconds, seconds))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def check_time() -> None:
    """To be called between parts of the work. Raises PolicyError when the time is up."""
    give_up_s, seconds = _LIMIT.get()
    if time.monotonic() > give_up_s:
        message = f"take over {seconds:g} s to check; make them shorter, or run `penstock check` on the files"
        raise PolicyError([Problem(Place("policies"), message)])
