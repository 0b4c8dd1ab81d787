"""CPU budget of one request's grammar: a slow grammar fails its request instead of stalling every step."""

from __future__ import annotations

from time import thread_time

from backend.structured.compiled_grammar import CompiledGrammar

PER_TOKEN_S = 0.006
"""Refill per output token. With a vocabulary of 150,000 tokens, JSON schemas took 0.1 ms per token on
average, the slowest one 0.6 ms, and the slowest legitimate regular expression 3 ms; slower CPUs need more."""

MAX_S = 0.05
"""Capacity. The worst single token of a JSON schema took 8 ms."""


class CpuBudget:
    """A token bucket of CPU time; use it as a context manager around the work to charge.

    Measures this thread's CPU time, so that a busy machine does not exhaust it. The time also counts as
    use of the compiled grammar, which estimates its growth from it.
    """

    __slots__ = ("_compiled", "_start_s", "left_s")

    def __init__(self, compiled: CompiledGrammar) -> None:
        self.left_s = MAX_S
        self._compiled = compiled

    @property
    def is_exhausted(self) -> bool:
        """True once more time was used than available."""
        return self.left_s < 0

    def refill(self) -> None:
        """Add the time for one output token."""
        self.left_s = min(MAX_S, self.left_s + PER_TOKEN_S)

    def __enter__(self) -> None:
        self._start_s = thread_time()

    def __exit__(self, *raised: object) -> None:
        used_s = thread_time() - self._start_s
        self.left_s -= used_s
        self._compiled.used_s += used_s
