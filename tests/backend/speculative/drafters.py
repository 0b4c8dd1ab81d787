"""Drafters for tests: they know what will come, and say it or not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from backend.types import Draft, DraftTree, Sequence


class GuessingDrafter:
    """Each token that it drafts is right with probability `skill`; some drafts are shorter, or none."""

    name = "guessing"
    is_cheap = False

    def __init__(
        self, next_token: Callable[[list[int]], int], vocab_size: int, skill: float, seed: int = 0
    ) -> None:
        self.observed: list[tuple[int, int]] = []
        self.sequences: set[Sequence] = set()
        self._next_token = next_token
        self._vocab_size = vocab_size
        self._skill = skill
        self._rng = random.Random(seed)

    def propose(self, sequences: list[Sequence], ks: list[int]) -> Iterable[Draft]:
        self.sequences |= set(sequences)
        return [self._propose(sequence.tokens, k) for sequence, k in zip(sequences, ks, strict=True)]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        self.observed.append((num_drafted, num_accepted))

    def forget(self, sequence: Sequence) -> None:
        self.sequences.discard(sequence)

    def drop_cached(self) -> None:
        return

    def _propose(self, tokens: list[int], k: int) -> list[int]:
        tokens, begin = list(tokens), len(tokens)
        for _ in range(self._rng.choice([k, k, self._rng.randrange(k + 1)])):
            is_right = self._rng.random() < self._skill
            tokens.append(self._next_token(tokens) if is_right else self._rng.randrange(self._vocab_size))
        return tokens[begin:]


class RandomDrafter(GuessingDrafter):
    """Knows nothing."""

    name = "random"

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        super().__init__(lambda tokens: 0, vocab_size, skill=0.0, seed=seed)


class StubbornDrafter:
    """Drafts one token, over and over."""

    name = "stubborn"
    is_cheap = True

    def __init__(self, token_id: int) -> None:
        self._token_id = token_id

    def propose(self, sequences: list[Sequence], ks: list[int]) -> list[list[int]]:
        return [[self._token_id] * k for k in ks]

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        pass

    def forget(self, sequence: Sequence) -> None:
        pass

    def drop_cached(self) -> None:
        return


class TreeDrafter(GuessingDrafter):
    """Trees of random shape, each node right with probability `skill`; sometimes a chain or nothing."""

    name = "trees"

    def __init__(
        self,
        next_token: Callable[[list[int]], int],
        vocab_size: int,
        skill: float,
        seed: int = 0,
        max_nodes: int = 12,
    ) -> None:
        super().__init__(next_token, vocab_size, skill, seed)
        self._max_nodes = max_nodes

    def propose(self, sequences: list[Sequence], ks: list[int]) -> Iterable[Draft]:
        self.sequences |= set(sequences)
        return [self._tree(sequence.tokens, k) for sequence, k in zip(sequences, ks, strict=True)]

    def _tree(self, tokens: list[int], k: int) -> Draft:
        if self._rng.random() < 0.2:
            return self._propose(tokens, k)
        nodes: list[int] = []
        parents: list[int] = []
        paths: list[list[int]] = []
        for _ in range(self._rng.randrange(self._max_nodes + 1)):
            parent = self._rng.randrange(-1, len(nodes))
            before = paths[parent] if parent >= 0 else []
            if len(before) == k:
                continue
            is_right = self._rng.random() < self._skill
            token = self._next_token(tokens + before) if is_right else self._rng.randrange(self._vocab_size)
            parents.append(parent)
            nodes.append(token)
            paths.append([*before, token])
        return DraftTree(tuple(nodes), tuple(parents))
