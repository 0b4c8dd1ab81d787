"""Machine seconds: the wall time of an engine, shared among the sequences that it worked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.types import ScheduledChunk

CONTEXT_OF_DOUBLE_COST = 4096
"""Tokens before a token with which computing it costs twice what it costs without any.

Attention's part grows with the context, that of the weights does not. Where both are equal depends on the
model, some 6 times its hidden size; shares depend little on it.
"""


class MachineTime:
    """Every moment is shared among sequences or idle, so the sum of both is the wall time.

    What lies between two steps, outputs that are sent and requests that are read, belongs to the second;
    with nothing to compute it is idle.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told_s = clock()  # what was before is in `work_s` or `_idle_s`
        self._idle_s = 0.0
        self._is_idle = True
        self.work_s = 0.0

    @property
    def idle_s(self) -> float:
        """Seconds without work, up to now."""
        return self._idle_s + (self._clock() - self._told_s if self._is_idle else 0.0)

    def begin_step(self) -> None:
        """Work begins, unless the step turns out to have none."""
        if self._is_idle:
            self._idle_s += self._passed()
            self._is_idle = False

    def rest(self) -> None:
        """There is nothing to compute: all since the last step is idle, and so is what follows."""
        self._is_idle = True

    def share(self, chunks: Sequence[ScheduledChunk]) -> None:
        """A step has ended: add its time to its sequences, by what their chunks cost to compute.

        That includes drafts, also rejected ones, and what is computed again after a preemption.
        """
        passed_s = self._passed()
        self.work_s += passed_s
        costs = [
            chunk.num_tokens * (1.0 + (chunk.start + 0.5 * chunk.num_tokens) / CONTEXT_OF_DOUBLE_COST)
            for chunk in chunks
        ]
        per_cost = passed_s / sum(costs)
        for chunk, cost in zip(chunks, costs, strict=True):
            chunk.sequence.machine_s += cost * per_cost

    def _passed(self) -> float:
        """Seconds since the last call."""
        before, self._told_s = self._told_s, self._clock()
        return self._told_s - before
