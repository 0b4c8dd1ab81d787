"""Drafters that fail are left alone for a while: no draft is worth the engine, and memory may come back."""

from __future__ import annotations

import logging
from types import TracebackType

logger = logging.getLogger(__name__)

FIRST_REST_STEPS, LONGEST_REST_STEPS = 256, 8192
"""After a failure, and twice as many after each further one."""


class Rests:
    """Who has failed, by name, and until when nobody should call it."""

    def __init__(self) -> None:
        self._step = 0
        self._until: dict[str, int] = {}  # the step in which it may be called again
        self._next_steps: dict[str, int] = {}

    def begin_step(self) -> None:
        """The step before is over."""
        self._step += 1

    @property
    def names(self) -> set[str]:
        """Those that failed not long ago."""
        if not self._until:
            return set()
        return {name for name, step in self._until.items() if self._step < step}

    def attempt(self, name: str) -> Attempt:
        """What `name` does inside may fail: that is logged, goes no further, and it rests from now on."""
        return Attempt(self, name)

    def add(self, name: str, error: Exception) -> None:
        """It has just failed."""
        steps = self._next_steps.get(name, FIRST_REST_STEPS)
        self._until[name] = self._step + steps
        self._next_steps[name] = min(2 * steps, LONGEST_REST_STEPS)
        kind = type(error).__name__
        logger.error("%s failed (%s): left alone for %d steps", name, kind, steps, exc_info=error)


class Attempt:
    """A context of Rests. Every step has some: a class of its own takes half of a generator's time."""

    __slots__ = ("_name", "_rests")

    def __init__(self, rests: Rests, name: str) -> None:
        self._rests, self._name = rests, name

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Whatever exception it was, the output does not need what was to come."""
        if not isinstance(error, Exception):
            return False
        self._rests.add(self._name, error)
        return True
