"""Verifier: P(one answer serves both) of a question and the candidates that an index found for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.pair_network import MAX_WORDS, PairNetwork, pad
from backend.classifiers.weights import read_weights, stamp
from cache.verify.features import pair_features
from cache.verify.vocabulary import Vocabulary
from cache.verify.words import MAX_CHARS, Sentence, read

Array = NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("weights") / "verifier.safetensors"


class Verifier:
    """Judges pairs of questions; see Verifier.load. Thread-safe."""

    def __init__(self, tensors: dict[str, NDArray[Any]], version: str) -> None:
        self.version = version
        """Content hash of the weights."""
        pieces = tensors["pieces"].tobytes().decode().split("\n")
        table = tensors["table"].astype(np.float32) * tensors["table.scale"].astype(np.float32)[:, None]
        self._vocabulary = Vocabulary(pieces, table, (tensors["idf"] / 255).astype(np.float32))
        own = {"pieces", "table", "table.scale", "idf", "blend", "knots", "probabilities", "thresholds"}
        self._network = PairNetwork({name: value for name, value in tensors.items() if name not in own})
        self._blend = tensors["blend"].astype(np.float64)  # weights of logit and cosine
        self._knots, self._probabilities = tensors["knots"], tensors["probabilities"]
        self._thresholds = tensors["thresholds"]

    @classmethod
    def load(cls, path: Path = WEIGHTS) -> Verifier:
        """Weights, those shipped by default, loaded again when the file changes. Raises WeightsError."""
        return _load(path, stamp(path))

    def threshold(self, max_false_share: float) -> float:
        """The least P at which this share of all hits at most is false on the development stream; or 1.01."""
        allowed = self._thresholds[self._thresholds[:, 0] <= max_false_share + 1e-9]
        return float(allowed[-1, 1]) if len(allowed) else 1.01

    def probabilities(
        self, asked: str, asked_vector: Array, known: Sequence[str], known_vectors: Array
    ) -> Array:
        """P for each of `known`; vectors are of length 1, [384] and [k, 384]. Texts over MAX_CHARS get 0."""
        if not known:
            return np.zeros(0, np.float32)
        logits = self.logits(read(asked), asked_vector, [read(text) for text in known], known_vectors)
        found: Array = np.interp(logits, self._knots, self._probabilities).astype(np.float32)
        found[[max(len(asked), len(text)) > MAX_CHARS for text in known]] = 0
        return found

    def logits(self, asked: Sentence, vector: Array, known: Sequence[Sentence], vectors: Array) -> Array:
        """Uncalibrated logits [k]."""
        idf, words_of = self._vocabulary.idf, self._vocabulary.vectors
        cosines = vectors @ vector
        rows = [pair_features(asked, other, float(c), idf) for other, c in zip(known, cosines, strict=True)]
        words, mask = pad([words_of(each.words[:MAX_WORDS]) for each in (asked, *known)])
        meaning = np.concatenate([np.abs(vectors - vector), vectors * vector], axis=1)
        found = self._network.logits(words, mask, meaning, np.array(rows, np.float32))
        blended: Array = self._blend[0] * found + self._blend[1] * cosines
        return blended


@lru_cache(maxsize=4)
def _load(path: Path, written: tuple[int, int]) -> Verifier:
    tensors, digest = read_weights(path)
    return Verifier(tensors, digest[:16])
