"""A verifier that says what a test wants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import float32
from numpy.typing import NDArray


class ScriptedVerifier:
    """P by the known question's text; `others` for all that are not named."""

    version = "1"

    def __init__(self, others: float | None = None, **probabilities: float) -> None:
        self._others = others
        self._probabilities = probabilities

    def threshold(self, max_false_share: float) -> float:
        return 1.0 - max_false_share

    def probabilities(
        self,
        asked: str,
        asked_vector: NDArray[float32],
        known: Sequence[str],
        known_vectors: NDArray[float32],
    ) -> NDArray[float32]:
        assert known_vectors.shape == (len(known), len(asked_vector)) and known_vectors.dtype == float32
        found = [self._probabilities.get(text, self._others) for text in known]
        assert None not in found
        return np.array(found, float32)
