"""Topics that operators describe by example: a sentence is about a topic when it is close to an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Topic:
    """Vectors of the examples, (examples, dimensions) of unit length, and the least cosine to one of them."""

    examples: Vectors
    min_similarity: float

    def similarity(self, vectors: Vectors) -> float:
        """The greatest cosine between sentences, (sentences, dimensions) of unit length, and examples."""
        return float((vectors @ self.examples.T).max()) if len(vectors) else 0.0


def topics_of(vectors: Vectors, topics: Mapping[str, Topic]) -> list[str]:
    """The names of the topics that the sentences are about."""
    return [
        name for name, topic in sorted(topics.items()) if topic.similarity(vectors) >= topic.min_similarity
    ]
