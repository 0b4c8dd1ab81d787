"""A limit on the time that reading policies may take: texts from a network may be made to take long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from policies.errors import Place, PolicyError, Problem

WORK_S, PAUSE_S = 0.001, 0.0001
"""So often, and for so long, work within a limit leaves the interpreter to other threads: to event loops."""


@dataclass(slots=True)
class _Limit:
    seconds: float
    give_up_s: float
    paused_s: float = 0.0


_LIMIT: ContextVar[_Limit | None] = ContextVar("_LIMIT", default=None)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Let `check_time` raise, in this thread or task, once so much time has passed."""
    token = _LIMIT.set(_Limit(seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def check_time() -> None:
    """To be called between parts of the work. Raises PolicyError when the time is up."""
    limit = _LIMIT.get()
    if limit is None:
        return
    now_s = time.monotonic()
    if now_s > limit.give_up_s:
        what = f"take over {limit.seconds:g} s to check"
        message = f"{what}; make them shorter, or run `penstock check` on the files"
        raise PolicyError([Problem(Place("policies"), message)])
    if now_s - limit.paused_s > WORK_S:
        time.sleep(PAUSE_S)
        limit.paused_s = time.monotonic()
