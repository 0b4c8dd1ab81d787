"""Prompt lookup: what followed the last few tokens when they occurred before in the same sequence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from backend.speculative.drafter import Drafter
from backend.types import Sequence

LONGEST_MATCH = 4
SHORTEST_MATCH = 2


class NgramDrafter(Drafter):
    """Looks up the longest known end of the sequence, of 4 to 2 tokens, and copies on from there."""

    name = "ngram"
    is_cheap = True

    def __init__(self) -> None:
        self._indexes = defaultdict[Sequence, NgramIndex](NgramIndex)

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """For each sequence, what followed the last place where its end occurred before."""
        asked = zip(sequences, ks, strict=True)
        return [self._indexes[sequence].continuation(sequence.tokens, k) for sequence, k in asked]

    def forget(self, sequence: Sequence) -> None:
        """Drop the sequence's index."""
        self._indexes.pop(sequence, None)


class NgramIndex:
    """Where each n-gram of a growing list last ended; one dictionary entry per token and length."""

    __slots__ = ("_ends", "_num_read")

    def __init__(self, lengths: Iterable[int] = range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1)) -> None:
        """`lengths` of n-grams, longest first."""
        # By length: n-gram → the position after its last occurrence.
        self._ends: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in lengths}
        self._num_read = 0

    def read(self, tokens: list[int], num_tokens: int) -> None:
        """Index the first `num_tokens` of a list; it may have grown since the last time."""
        for n, ends in self._ends.items():
            for end in range(max(n, self._num_read + 1), num_tokens + 1):
                ends[tuple(tokens[end - n : end])] = end
        self._num_read = num_tokens

    def find(self, tokens: list[int]) -> tuple[int, int]:
        """The length of the longest known end of `tokens`, and the position after it; 0 when it is new."""
        for n, ends in self._ends.items():
            end = ends.get(tuple(tokens[-n:]))
            if end is not None:
                return n, end
        return 0, 0

    def continuation(self, tokens: list[int], k: int) -> list[int]:
        """At most k tokens that followed the end of `tokens`, the list itself, before; [] when it is new."""
        self.read(tokens, len(tokens) - 1)  # the end itself is left out: it is what will be looked for
        length, end = self.find(tokens)
        return _copied(tokens, end, k) if length else []


def _copied(tokens: list[int], start: int, k: int) -> list[int]:
    """K tokens from `start` on; where the list ends, what was copied goes on as a loop."""
    draft = tokens[start : start + k]
    period = len(tokens) - start
    while len(draft) < k:
        draft.append(draft[-period])
    return draft
