"""Predicts the gain of the strongest model over the cheapest for a prompt.

Gain is what decides, not difficulty, which sends hopeless questions to the strong model too. Two linear
models, over hashed words with surface features and over the sentence vector, are averaged: each holds up
where the other fails. Far from the training data neither says anything: the prediction goes to the mean gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.weights import Tensor, WeightsError, read_weights
from router.estimate.asking import asking_part
from router.estimate.features import NUM_BUCKETS, NUM_SURFACE, NUM_VOCABULARY, surface_features, word_buckets

Array = NDArray[np.float32]
WEIGHTS = Path(__file__).with_name("weights")
BUILTIN = "builtin:"


@dataclass(frozen=True, slots=True)
class Prediction:
    """For one prompt."""

    gain: float  # expected score of the strongest model less that of the cheapest, -1 to 1
    familiarity: float  # 0 to 1: how near the training data is
    stays: float = 0.0  # probability that a cascade keeps the cheapest model's answer
    lacks_vector: bool = False  # the estimate reads one, and the encoder did not give it


class Estimate:
    """The weights of one training run. Immutable."""

    def __init__(self, path: Path) -> None:
        """Raises WeightsError."""
        tensors, self.digest = read_weights(path)
        try:
            self._gain = _Words.of(tensors, "")
            self._stays = _Words.of(tensors, "stays.") if "stays.scalars" in tensors else None
            self._vector: Array | None = tensors.get("vector.weight")  # (385,): the last one is the bias
            self.answer_tokens: list[float] | None = None  # expected, of both models
            if "answer_tokens" in tensors:
                self.answer_tokens = tensors["answer_tokens"].tolist()
        except (KeyError, ValueError) as error:
            raise WeightsError(f"{str(path)!r} lacks {error}: train it again.") from error

    @property
    def needs_vector(self) -> bool:
        """Whether it reads the sentence vector too."""
        return self._vector is not None

    @property
    def mean_gain(self) -> float:
        """The mean gain of the training data."""
        return self._gain.base

    def predict(self, text: str, vector: Array | None = None, *, has_tools: bool = False) -> Prediction:
        """For the part that asks. `vector` (384,) of unit length, of that part; without one words decide."""
        text = asking_part(text)
        surface = surface_features(text, has_tools=has_tools)
        buckets, vocabulary = word_buckets(text)
        familiarity = self._gain.familiarity(vocabulary)
        score = self._gain.score(surface, buckets)
        if self._vector is not None and vector is not None:
            score = (score + float(self._vector[:-1] @ vector) + float(self._vector[-1])) / 2
        gain = max(-1.0, min(1.0, self._gain.shrunk(score, familiarity)))
        if self._stays is None:
            return Prediction(gain, familiarity, 1.0 - max(0.0, gain))
        stays = self._stays.shrunk(self._stays.score(surface, buckets), familiarity)
        return Prediction(gain, familiarity, max(0.0, min(1.0, stays)))


@dataclass(frozen=True, slots=True)
class _Words:
    """Linear in surface features and hashed words."""

    mean: Array  # (NUM_SURFACE,)
    scale: Array
    surface: Array
    words: Array  # (NUM_BUCKETS,)
    known: Array  # (NUM_VOCABULARY,), 1: seen in training
    scalars: Array  # bias, mean of the targets, slope and middle of the familiarity

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], prefix: str) -> _Words:
        found = cls(
            tensors["surface.mean"],
            tensors["surface.scale"],
            tensors[f"{prefix}surface.weight"],
            tensors[f"{prefix}words.weight"].astype(np.float32),
            tensors["words.known"].astype(np.float32),
            tensors[f"{prefix}scalars"],
        )
        shapes = [each.shape for each in (found.surface, found.words, found.known, found.scalars)]
        if shapes != [(NUM_SURFACE,), (NUM_BUCKETS,), (NUM_VOCABULARY,), (4,)]:
            raise ValueError("the features of this version")
        return found

    @property
    def base(self) -> float:
        return float(self.scalars[1])

    def score(self, surface: Array, buckets: NDArray[np.int64]) -> float:
        found = float(((surface - self.mean) * self.scale) @ self.surface) + float(self.scalars[0])
        return found + (float(self.words[buckets].sum()) / math.sqrt(len(buckets)) if len(buckets) else 0.0)

    def familiarity(self, vocabulary: NDArray[np.int64]) -> float:
        """From the share of the text's words that are known."""
        similarity = float(self.known[vocabulary].mean()) if len(vocabulary) else 1.0
        _, _, slope, middle = map(float, self.scalars)
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, slope * (similarity - middle)))))

    def shrunk(self, score: float, familiarity: float) -> float:
        """Far from the training data, its mean."""
        return self.base + familiarity * (score - self.base)


def builtin_names() -> list[str]:
    """The estimates that ship, as policies name them."""
    return sorted(f"{BUILTIN}{path.stem}" for path in WEIGHTS.glob("*.safetensors"))


@lru_cache(maxsize=8)
def load_estimate(name: str) -> Estimate:
    """`builtin:NAME` or the path of a safetensors file. Raises WeightsError."""
    if not name.startswith(BUILTIN):
        return Estimate(Path(name))
    if name not in builtin_names():
        raise WeightsError(f"there is no estimate {name!r}; there are {', '.join(builtin_names())}.")
    return Estimate(WEIGHTS / f"{name.removeprefix(BUILTIN)}.safetensors")


def weights_of(name: str) -> Path:
    """The file of an estimate, `builtin:NAME` or a path."""
    return WEIGHTS / f"{name.removeprefix(BUILTIN)}.safetensors" if name.startswith(BUILTIN) else Path(name)
