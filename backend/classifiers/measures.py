"""Measures of a binary judgement: ranking, precision and recall at levels, reliability, intervals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)


class AtLevel(NamedTuple):
    """Pairs at or above a level of P(correct)."""

    level: float
    precision: float | None  # None: no pair reaches the level
    recall: float
    num_served: int
    num_false: int


class Bin(NamedTuple):
    """Pairs of similar P(correct)."""

    low: float
    high: float
    num_pairs: int
    mean_probability: float
    share_same: float


def auc(scores: NDArray[np.floating], labels: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve, ties counted half; None when only one class occurs."""
    num_true = int(labels.sum())
    num_false = len(labels) - num_true
    if not num_true or not num_false:
        return None
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[places]
    return float((ranks[labels].sum() - num_true * (num_true + 1) / 2) / (num_true * num_false))


def at_levels(scores: NDArray[np.floating], labels: NDArray[np.bool_]) -> list[AtLevel]:
    """Precision and recall at LEVELS."""
    found = []
    for level in LEVELS:
        is_served = scores >= level
        served, right = int(is_served.sum()), int((is_served & labels).sum())
        recall = right / max(1, int(labels.sum()))
        found.append(AtLevel(level, right / served if served else None, recall, served, served - right))
    return found


def reliability(
    scores: NDArray[np.floating], labels: NDArray[np.bool_], edges: Sequence[float] | None = None
) -> list[Bin]:
    """How often pairs of a given P(correct) are in fact right."""
    edges = edges or [*np.linspace(0, 0.9, 10), 0.95, 0.98, 1.0]
    bins = []
    for low, high in itertools.pairwise(edges):
        inside = (scores >= low) & ((scores < high) | (high == edges[-1]))
        if inside.any():
            bins.append(
                Bin(
                    low=float(low),
                    high=float(high),
                    num_pairs=int(inside.sum()),
                    mean_probability=float(scores[inside].mean()),
                    share_same=float(labels[inside].mean()),
                )
            )
    return bins


def wilson(num_hits: int, num_trials: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson); (0, 1) without a trial."""
    if not num_trials:
        return 0.0, 1.0
    z = 1.959964
    share, spread = num_hits / num_trials, z * z / num_trials
    centre = share + spread / 2
    margin = z * sqrt(share * (1 - share) / num_trials + spread / (4 * num_trials))
    return max(0.0, (centre - margin) / (1 + spread)), min(1.0, (centre + margin) / (1 + spread))
