"""What followed the longest end of this text in recent outputs of the same tenant and adapter.

Outputs are read when they end, each with the end of its prompt before it, so that an equal question finds its
answer from the first token on. Memory is bounded: two generations per tenant, and few tenants.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from backend.speculative.drafter import Drafter
from backend.speculative.ngram import NgramDrafter
from backend.types import Sequence, SequenceStatus

ROOT = 0
"""The automaton's state before any token."""

CONTEXT_TOKENS = 32
"""So many tokens of the prompt are read with an output."""

SHORTEST_MATCH = 3

_SEPARATOR = -1

Space = tuple[str, str]
"""Tenant salt and adapter: what one tenant was answered is never guessed for another."""


class SuffixAutomaton:
    """Built online (Blumer et al., 1985): at most two states per token, amortised O(1) each."""

    __slots__ = ("_last", "ends", "lengths", "links", "moves", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.moves: list[dict[int, int]] = [{}]  # by state: token → state
        self.links = [-1]  # by state: the state of its longest suffix that goes on differently
        self.lengths = [0]  # by state: tokens of its longest substring
        self.ends = [0]  # by state: the position behind an occurrence, mostly the last
        self._last = ROOT

    def append(self, token: int) -> None:
        """Read one more token."""
        self.tokens.append(token)
        state = self._new(self.lengths[self._last] + 1, {}, ROOT)
        before = self._last
        while before >= 0 and token not in self.moves[before]:
            self.moves[before][token] = state
            before = self.links[before]
        if before >= 0:
            self.links[state] = self._suffix(before, token)
            # This suffix, the longest that was known, has just occurred again: what follows now is newer.
            self.ends[self.links[state]] = len(self.tokens)
        self._last = state

    def follow(self, state: int, length: int, token: int) -> tuple[int, int]:
        """From a match of `length` tokens at `state` to the longest match that ends with `token`."""
        while state > ROOT and token not in self.moves[state]:
            state = self.links[state]
            length = self.lengths[state]
        if token in self.moves[state]:
            return self.moves[state][token], length + 1
        return ROOT, 0

    def _suffix(self, before: int, token: int) -> int:
        """The state of the longest known suffix, split off where it is part of a longer one's."""
        found = self.moves[before][token]
        if self.lengths[found] == self.lengths[before] + 1:
            return found
        copy = self._new(self.lengths[before] + 1, dict(self.moves[found]), self.links[found])
        self.ends[copy] = self.ends[found]
        while before >= 0 and self.moves[before].get(token) == found:
            self.moves[before][token] = copy
            before = self.links[before]
        self.links[found] = copy
        return copy

    def _new(self, length: int, moves: dict[int, int], link: int) -> int:
        self.lengths.append(length)
        self.moves.append(moves)
        self.links.append(link)
        self.ends.append(len(self.tokens))
        return len(self.moves) - 1


@dataclass(slots=True)
class _Match:
    """Where a running sequence stands in each generation of its space."""

    generations: list[SuffixAutomaton]
    states: list[tuple[int, int]]  # state and length of the match
    num_read: int  # tokens of the sequence


class SuffixDrafter(Drafter):
    """Cross-request suffix matching; where nothing matches, the sequence's own earlier text."""

    name = "suffix"
    is_cheap = True

    def __init__(self, max_tokens: int = 16_384, max_spaces: int = 8) -> None:
        """`max_tokens` per generation; two generations in each of `max_spaces`."""
        self._max_tokens = max_tokens
        self._max_spaces = max_spaces
        self._spaces: OrderedDict[Space, list[SuffixAutomaton]] = OrderedDict()  # newest generation first
        self._matches: dict[Sequence, _Match] = {}
        self._own = NgramDrafter()

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        """See Drafter."""
        drafts = [self._propose(sequence, k) for sequence, k in zip(sequences, ks, strict=True)]
        for index, draft in enumerate(drafts):
            if not draft:
                drafts[index] = self._own.propose([sequences[index]], [ks[index]])[0]
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Read the output of a sequence that has ended well; see Drafter."""
        self._own.forget(sequence)
        known = self._matches.pop(sequence, None) is not None
        if sequence.status is SequenceStatus.FINISHED and sequence.finish_reason in ("stop", "length"):
            if known or sequence.num_output_tokens > SHORTEST_MATCH:
                self._read(sequence)

    def _propose(self, sequence: Sequence, k: int) -> list[int]:
        generations = self._spaces.get(_space(sequence))
        if generations is None:
            return []
        match = self._advance(sequence, generations)
        best = max(range(len(generations)), key=lambda i: match.states[i][1])
        state, length = match.states[best]
        if length < SHORTEST_MATCH:
            return []
        automaton = generations[best]
        end = automaton.ends[state]
        draft = automaton.tokens[end : end + k]
        return draft[: draft.index(_SEPARATOR)] if _SEPARATOR in draft else draft

    def _advance(self, sequence: Sequence, generations: list[SuffixAutomaton]) -> _Match:
        """Follow the tokens that have come since the last look."""
        match = self._matches.get(sequence)
        if match is None or match.generations != generations:
            begin = max(0, sequence.num_prompt_tokens - CONTEXT_TOKENS)
            match = _Match(list(generations), [(ROOT, 0)] * len(generations), begin)
            self._matches[sequence] = match
        for token in sequence.tokens[match.num_read :]:
            for i, automaton in enumerate(generations):
                match.states[i] = automaton.follow(*match.states[i], token)
        match.num_read = len(sequence.tokens)
        return match

    def _read(self, sequence: Sequence) -> None:
        space = _space(sequence)
        generations = self._spaces.setdefault(space, [SuffixAutomaton()])
        self._spaces.move_to_end(space)
        while len(self._spaces) > self._max_spaces:
            self._spaces.popitem(last=False)
        if len(generations[0].tokens) >= self._max_tokens:
            generations = self._spaces[space] = [SuffixAutomaton(), generations[0]]
        newest = generations[0]
        begin = max(0, sequence.num_prompt_tokens - CONTEXT_TOKENS)
        for token in sequence.tokens[begin : begin + self._max_tokens]:
            newest.append(token)
        newest.append(_SEPARATOR)


def _space(sequence: Sequence) -> Space:
    return sequence.request.tenant_salt, sequence.request.adapter
