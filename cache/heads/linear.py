"""Logistic regression over word markers and the sentence vector: the form of every head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache.verify.weights import read_weights

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


@cache
def load_head(name: str) -> Head:
    """A shipped head, loaded once per process. Raises WeightsError."""
    tensors, _ = read_weights(WEIGHTS)
    markers, vector = (tensors[f"{name}.{part}"].astype(np.float32) for part in ("markers", "vector"))
    return Head(markers, vector, float(tensors[f"{name}.bias"][0]))


def fit(inputs: Array, labels: Array, penalty: Array) -> NDArray[np.float64]:
    """Newton's method with a ridge penalty per column; the last coefficient is the bias."""
    x = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1).astype(np.float64)
    ridge = np.append(penalty, 1e-3)
    coefficients = np.zeros(x.shape[1])
    for _ in range(30):
        p = 1 / (1 + np.exp(-np.clip(x @ coefficients, -30, 30)))
        gradient = x.T @ (p - labels) + ridge * coefficients
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(ridge)
        step = np.linalg.solve(hessian, gradient)
        coefficients -= step
        if np.abs(step).max() < 1e-6:
            break
    return coefficients
