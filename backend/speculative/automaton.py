"""A suffix automaton that grows token by token: every substring of what it read is a path from its root."""

from __future__ import annotations

ROOT = 0


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
