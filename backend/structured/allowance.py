"""Processor time that following a grammar may take, so that a slow one costs its request and not the step."""

from __future__ import annotations

from time import thread_time

PER_TOKEN_S = 0.006
"""With 150,000 tokens in the vocabulary, schemas took 0.1 ms per token, the slowest 0.6 ms on average of its
output, and the slowest honest regular expression, of long sentences, 3 ms; not all are as fast as this."""

MOST_S = 0.05
"""So much can be saved up. A single token has cost a schema 8 ms at worst."""


class Allowance:
    """`with` it is done what counts: this thread's time on the processor, whatever else the machine does."""

    __slots__ = ("_start_s", "left_s")

    def __init__(self) -> None:
        self.left_s = MOST_S

    @property
    def is_spent(self) -> bool:
        """More was taken than there was."""
        return self.left_s < 0

    def earn(self) -> None:
        """A token was kept."""
        self.left_s = min(MOST_S, self.left_s + PER_TOKEN_S)

    def __enter__(self) -> None:
        self._start_s = thread_time()

    def __exit__(self, *raised: object) -> None:
        self.left_s -= thread_time() - self._start_s
