"""Logistic regression over word markers and the sentence vector: the form of every head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.weights import read_weights, stamp

Array = NDArray[np.float32]

WEIGHTS = Path(__file__).with_name("weights") / "heads.safetensors"


@dataclass(frozen=True, slots=True)
class Head:
    """Weights for markers, vector and bias."""

    markers: Array
    vector: Array
    bias: float

    def probability(self, markers: Sequence[float], vector: Array) -> float:
        """P of the positive class."""
        logit = float(np.dot(self.markers, markers) + np.dot(self.vector, vector)) + self.bias
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


def load_head(name: str, path: Path = WEIGHTS) -> Head:
    """A head, the shipped one by default, loaded again when the file changes. Raises WeightsError."""
    return _load(name, path, stamp(path))


@lru_cache(maxsize=16)
def _load(name: str, path: Path, written: tuple[int, int]) -> Head:
    tensors, _ = read_weights(path)
    markers, vector = (tensors[f"{name}.{part}"].astype(np.float32) for part in ("markers", "vector"))
    return Head(markers, vector, float(tensors[f"{name}.bias"][0]))
