"""What followed the longest end of this text in recent outputs of the same tenant and adapter.

Outputs are read when they end, each with the end of its prompt before it, so that an equal question finds its
answer from the first token on. Ends are looked up as n-grams, as in ngram.py. Memory is bounded: two
generations per tenant, and few tenants.
"""

from __future__ import annotations

from collections import OrderedDict

from backend.speculative.drafter import Drafter
from backend.speculative.ngram import NgramDrafter, NgramIndex
from backend.types import Sequence

CONTEXT_TOKENS = 32
"""Tokens of the prompt that are read with an output."""

MATCH_TOKENS = (32, 16, 8, 5, 3)
"""Lengths of the ends that are looked up, longest first."""

_SEPARATOR = -1

Space = tuple[str, str]
"""Tenant salt and adapter: what one tenant was answered is never guessed for another."""


class OutputIndex(NgramIndex):
    """Outputs one after the other, and where each of their n-grams last ended."""

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        super().__init__(MATCH_TOKENS)
        self.tokens: list[int] = []

    def add(self, output: list[int]) -> None:
        """Index one more output."""
        self.tokens += [*output, _SEPARATOR]
        self.read(self.tokens, len(self.tokens))

    def after(self, position: int, k: int) -> list[int]:
        """At most k tokens from a position on, of one output."""
        found = self.tokens[position : position + k]
        return found[: found.index(_SEPARATOR)] if _SEPARATOR in found else found


class SuffixDrafter(Drafter):
    """Cross-request suffix matching; where nothing matches, the sequence's own earlier text."""

    name = "suffix"
    is_cheap = True

    def __init__(self, max_tokens: int = 16_384, max_spaces: int = 8) -> None:
        """`max_tokens` per generation; two generations in each of `max_spaces`."""
        self._max_tokens = max_tokens
        self._max_spaces = max_spaces
        self._spaces: OrderedDict[Space, list[OutputIndex]] = OrderedDict()  # newest generation first
        self._own = NgramDrafter()

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """For each sequence, what followed its longest known suffix in earlier outputs or itself."""
        return [
            self._propose(sequence, k) or self._own.propose([sequence], [k])[0]
            for sequence, k in zip(sequences, ks, strict=True)
        ]

    def forget(self, sequence: Sequence) -> None:
        """Read the output of a sequence that has ended well; see Drafter."""
        self._own.forget(sequence)
        if sequence.finish_reason in ("stop", "length"):
            self._read(sequence)

    def _propose(self, sequence: Sequence, k: int) -> list[int]:
        generations = self._spaces.get(_space(sequence), [])
        text = sequence.tokens[-MATCH_TOKENS[0] :]
        found = [(generation, *generation.find(text)) for generation in generations]
        generation, length, position = max(found, key=lambda each: each[1], default=(None, 0, 0))
        return generation.after(position, k) if generation is not None and length else []

    def _read(self, sequence: Sequence) -> None:
        space = _space(sequence)
        generations = self._spaces.setdefault(space, [OutputIndex()])
        self._spaces.move_to_end(space)
        while len(self._spaces) > self._max_spaces:
            self._spaces.popitem(last=False)
        if len(generations[0].tokens) >= self._max_tokens:
            generations = self._spaces[space] = [OutputIndex(), generations[0]]
        begin = max(0, sequence.num_prompt_tokens - CONTEXT_TOKENS)
        generations[0].add(sequence.tokens[begin : begin + self._max_tokens])


def _space(sequence: Sequence) -> Space:
    return sequence.request.tenant_salt, sequence.request.adapter
