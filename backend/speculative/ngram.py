"""Prompt lookup: what followed the last few tokens when they occurred before in the same sequence."""

from __future__ import annotations

from backend.speculative.drafter import Drafter
from backend.types import Sequence

LONGEST_MATCH = 4
SHORTEST_MATCH = 2


class NgramDrafter(Drafter):
    """Looks up the longest known end of the sequence, of 4 to 2 tokens, and copies on from there."""

    name = "ngram"
    is_cheap = True

    def __init__(self) -> None:
        self._indexes: dict[Sequence, NgramIndex] = {}

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """See Drafter."""
        return [self._propose(sequence, k) for sequence, k in zip(sequences, ks, strict=True)]

    def forget(self, sequence: Sequence) -> None:
        """See Drafter."""
        self._indexes.pop(sequence, None)

    def _propose(self, sequence: Sequence, k: int) -> list[int]:
        index = self._indexes.get(sequence)
        if index is None:
            index = self._indexes[sequence] = NgramIndex()
        return index.continuation(sequence.tokens, k)


class NgramIndex:
    """Where each n-gram of a growing list last ended; a few dictionary entries per token."""

    __slots__ = ("_ends", "_num_indexed")

    def __init__(self) -> None:
        # By length: n-gram → the position behind its last occurrence.
        self._ends: dict[int, dict[tuple[int, ...], int]] = {
            n: {} for n in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1)
        }
        self._num_indexed = 0  # n-grams that end at or before this position are known

    def continuation(self, tokens: list[int], k: int) -> list[int]:
        """At most k tokens that followed the end of `tokens` before; [] when it is new."""
        self._index(tokens)
        for n, ends in self._ends.items():
            end = ends.get(tuple(tokens[-n:]))
            if end is not None:
                return _copied(tokens, end, k)
        return []

    def _index(self, tokens: list[int]) -> None:
        # The end itself is left out: it is what will be looked for.
        for n, ends in self._ends.items():
            for end in range(max(n, self._num_indexed + 1), len(tokens)):
                ends[tuple(tokens[end - n : end])] = end
        self._num_indexed = len(tokens) - 1


def _copied(tokens: list[int], start: int, k: int) -> list[int]:
    """K tokens from `start` on; where the list ends, what was copied goes on as a loop."""
    draft = tokens[start : start + k]
    period = len(tokens) - start
    while len(draft) < k:
        draft.append(draft[-period])
    return draft
