"""Exponential backoff, counted in engine steps: the one way in which speculation leaves something alone.

A sequence for which nothing is drafted, a batch size at which drafts lose time, hidden-state capture that
does not pay and a drafter that raises all back off by this class.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from backend.speculative import MAX_DOUBLINGS, PAUSE_STEPS

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Backoff:
    """Pauses that double with each failure in a row."""

    __slots__ = ("_first_steps", "_num_doublings", "_resume_step")

    def __init__(self, first_steps: int) -> None:
        """`first_steps` is the length of the first pause."""
        self._first_steps = first_steps
        self._num_doublings = 0
        self._resume_step = 0

    def is_paused(self, step: int) -> bool:
        """Whether the pause lasts at this step."""
        return step < self._resume_step

    def fail(self, step: int) -> int:
        """Pause after this step; returns for how many steps.

        Pauses end at multiples of their length, so that those of equal length end in the same step: sequences
        are polled together, and a batch shares the fixed cost of drafting.
        """
        pause = self._first_steps << self._num_doublings
        self._num_doublings = min(self._num_doublings + 1, MAX_DOUBLINGS)
        self._resume_step = -(-(step + pause) // pause) * pause
        return self._resume_step - step - 1

    def succeed(self) -> None:
        """End the pause; the next failure pauses for the shortest time again."""
        self._num_doublings = 0
        self._resume_step = 0


class FailureGuard(Backoff):
    """Calls what may raise, logs exceptions and pauses it: drafts are optional, and memory may come back."""

    def __init__(self, name: str) -> None:
        super().__init__(PAUSE_STEPS)
        self._name = name

    def call(self, step: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """The result of the function; None when it raised."""
        try:
            return function(*args, **kwargs)
        except Exception as error:  # any failure of an optional part only costs speed
            if step - self._resume_step > PAUSE_STEPS << MAX_DOUBLINGS:
                self.succeed()  # it has worked for longer than the longest pause: not in a row
            pause = self.fail(step)
            kind = type(error).__name__
            logger.error("%s failed (%s): paused for %d steps", self._name, kind, pause, exc_info=error)
            return None
