"""Verifier: P(one answer serves both) of a question and the candidates that an index found for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.heads.pair_network import MAX_WORDS, PairNetwork, pad
from backend.heads.weights import read_weights
from cache.verify.features import NAMES, pair_features
from cache.verify.vocabulary import Vocabulary
from cache.verify.words import MAX_CHARS, Sentence, read

Array = NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("weights") / "verifier.safetensors"

VETOES: dict[str, float] = {
    "numbers_differ": 0.45,
    "number_missing": 0.45,
    "negation_differs": 0.45,
    "swapped_roles": 0.45,
    "opposite_words": 0.45,
}
"""Most that the probability can be where a feature is set: such a change mostly reverses the answer, however
alike the sentences are, and labels of public pairs are too lenient about it."""
_VETO_COLUMNS = [NAMES.index(name) for name in VETOES]
_VETO_CAPS = np.array(list(VETOES.values()), np.float32)
_SLOPE_ABOVE_CAP = 0.1  # so that capped pairs keep their order


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
    def load(cls) -> Verifier:
        """The shipped verifier, loaded once per process. Raises WeightsError."""
        return _load()

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
        sentence = read(asked)
        others = [read(text) for text in known]
        return self._judge(sentence, asked_vector, others, known_vectors, _too_long(asked, known))[0]

    def explain(self, asked: str, asked_vector: Array, known: str, known_vector: Array) -> dict[str, float]:
        """The features of a pair by name, "cosine" among them, "probability", and its "cap" by VETOES."""
        vectors = known_vector[None]
        long = _too_long(asked, [known])
        judged, features = self._judge(read(asked), asked_vector, [read(known)], vectors, long)
        values = {name: float(value) for name, value in zip(NAMES, features[0], strict=True)}
        return values | {"probability": float(judged[0]), "cap": float(_caps(features)[0])}

    def _judge(
        self,
        asked: Sentence,
        vector: Array,
        known: Sequence[Sentence],
        vectors: Array,
        too_long: Sequence[bool],
    ) -> tuple[Array, Array]:
        """Probabilities [k] and features [k, f]."""
        logits, features = self.logits(asked, vector, known, vectors)
        found = np.interp(logits, self._knots, self._probabilities)
        caps = _caps(features)
        found = np.where(found > caps, caps + _SLOPE_ABOVE_CAP * (found - caps), found)
        found[np.asarray(too_long)] = 0
        return found.astype(np.float32), features

    def logits(
        self, asked: Sentence, vector: Array, known: Sequence[Sentence], vectors: Array
    ) -> tuple[Array, Array]:
        """Uncalibrated logits [k], and features [k, f]."""
        idf, words_of = self._vocabulary.idf, self._vocabulary.vectors
        cosines = vectors @ vector
        rows = [pair_features(asked, other, float(c), idf) for other, c in zip(known, cosines, strict=True)]
        features = np.array(rows, np.float32)
        words, mask = pad([words_of(each.words[:MAX_WORDS]) for each in (asked, *known)])
        meaning = np.concatenate([np.abs(vectors - vector), vectors * vector], axis=1)
        found = self._network.logits(words, mask, meaning, features)
        blended: Array = self._blend[0] * found + self._blend[1] * cosines
        return blended, features


@cache
def _load() -> Verifier:
    tensors, digest = read_weights(WEIGHTS)
    return Verifier(tensors, digest[:16])


def _too_long(asked: str, known: Sequence[str]) -> list[bool]:
    """Whether a part of either text would not be compared."""
    return [max(len(asked), len(text)) > MAX_CHARS for text in known]


def _caps(features: Array) -> Array:
    """The least of the VETOES that apply, else 1: [k]."""
    caps: Array = np.where(features[:, _VETO_COLUMNS] > 0, _VETO_CAPS, np.float32(1)).min(axis=1)
    return caps
