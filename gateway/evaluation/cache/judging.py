"""Judges pairs of questions as the gateway does: what it cannot read, then guards, then the verifier."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from cache.question import normalised
from cache.semantic_cache import MIN_COSINE
from cache.verify import Verifier
from cache.verify.guards import ENGLISH, stopped_by, unreadable

Array = NDArray[np.float32]


class Judge:
    """Scores pairs. A text that is too long for the encoder has no vector and is not served by meaning."""

    def __init__(
        self, verifier: Verifier, vectors: Mapping[str, Array], languages: Collection[str] = ENGLISH
    ) -> None:
        """`languages`: those that the encoder reads."""
        self._verifier = verifier
        self._vectors = vectors
        self._languages = languages

    def cosine(self, one: str, other: str) -> float:
        """The cosine of two texts; 0 where one has no vector."""
        vectors = self._vectors.get(one), self._vectors.get(other)
        return 0.0 if vectors[0] is None or vectors[1] is None else float(vectors[0] @ vectors[1])

    def probability(self, asked: str, known: str) -> float:
        """The verifier's P that one answer serves both, whatever guards say; 0 without a vector."""
        if asked not in self._vectors or known not in self._vectors:
            return 0.0
        vector, others = self._vectors[asked], self._vectors[known][None]
        return float(self._verifier.probabilities(asked, vector, [known], others)[0])

    def is_served(self, asked: str, known: str, threshold: float) -> bool:
        """Whether the gateway serves the answer of one to the other."""
        return normalised(asked) == normalised(known) or self.scores(asked, [known])[0] >= threshold

    def scores(self, asked: str, known: Sequence[str]) -> list[float]:
        """P for each of `known`; 0 where it is not served whatever P is."""
        found = [0.0] * len(known)
        for place, text in enumerate(known):
            if self.cosine(asked, text) >= MIN_COSINE and not self.is_stopped(asked, text):
                found[place] = self.probability(asked, text)
        return found

    def is_stopped(self, asked: str, known: str) -> bool:
        """The same of the encoder's languages."""
        return is_stopped(asked, known, self._languages)


def is_stopped(asked: str, known: str, languages: Collection[str] = ENGLISH) -> bool:
    """Whether one of two questions is not compared by meaning, or a guard stops the pair."""
    unread = unreadable(asked, languages) or unreadable(known, languages)
    return unread is not None or stopped_by(asked, known) is not None
