"""Measures of a router between a weak and a strong model, as RouteLLM defines them (arXiv 2406.18665)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of one order of questions, from those that need the strong model most."""

    num_questions: int
    weak: float  # mean score
    strong: float
    oracle: float  # of the better answer of the two to each question
    apgr: float  # mean share of the gain that is recovered, over all shares of strong calls; 0.5: random
    oracle_apgr: float
    strong_share_95: float  # share of strong calls for 95 % of the strong model's score
    strong_share_99: float
    random_share_95: float
    random_share_99: float
    auc: float  # of telling where the strong model is better


def measure(predicted: Array, weak: Array, strong: Array) -> Measures:
    """`predicted` gains, and both models' scores of the same questions, each [N]."""
    mean_weak, mean_strong = float(weak.mean()), float(strong.mean())
    curve = accuracies(predicted, weak, strong)
    return Measures(
        num_questions=len(weak),
        weak=mean_weak,
        strong=mean_strong,
        oracle=float(np.maximum(weak, strong).mean()),
        apgr=_apgr(curve),
        oracle_apgr=_apgr(accuracies(strong - weak, weak, strong)),
        strong_share_95=share_for(curve, 0.95 * mean_strong),
        strong_share_99=share_for(curve, 0.99 * mean_strong),
        random_share_95=_random_share(mean_weak, mean_strong, 0.95),
        random_share_99=_random_share(mean_weak, mean_strong, 0.99),
        auc=auc(predicted, strong > weak),
    )


def accuracies(predicted: Array, weak: Array, strong: Array) -> Array:
    """(N + 1,): the mean score with 0, 1, … N strong calls, those of the highest predictions.

    Equal predictions count as in a random order.
    """
    order = np.argsort(-predicted, kind="stable")
    gains, keys = (strong - weak)[order].astype(np.float64), predicted[order]
    _, starts, counts = np.unique(-keys, return_index=True, return_counts=True)
    spread = np.repeat(np.add.reduceat(gains, starts) / counts, counts)
    return np.asarray((weak.sum() + np.concatenate([[0.0], np.cumsum(spread)])) / len(weak), np.float32)


def auc(scores: Array, labels: NDArray[np.bool_]) -> float:
    """The area under the ROC curve: how often a positive has the higher score; 0.5 where all are alike."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives, negatives = int(labels.sum()), int((~labels).sum())
    if not positives or not negatives:
        return 0.5
    return float((ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def _apgr(curve: Array) -> float:
    span = float(curve[-1] - curve[0])
    recovered = (curve - curve[0]) / span if abs(span) > 1e-9 else np.full_like(curve, 0.5)
    return float((recovered[:-1] + recovered[1:]).mean() / 2)


def share_for(curve: Array, target: float) -> float:
    """The least share of strong calls with at least this mean score; 1.0 when there is none."""
    reached = np.flatnonzero(curve >= target - 1e-9)
    return float(reached[0] / (len(curve) - 1)) if len(reached) else 1.0


def _random_share(weak: float, strong: float, part: float) -> float:
    return max(0.0, min(1.0, (part * strong - weak) / (strong - weak))) if strong > weak else 0.0


def flips(
    predict: Callable[[str], float],
    prompts: list[str],
    threshold: float,
    change: Callable[[Random, str], str],
) -> float:
    """The share of prompts whose side of the threshold changes with the text."""
    draw = Random(0)
    changed = [(predict(text) > threshold) != (predict(change(draw, text)) > threshold) for text in prompts]
    return sum(changed) / max(1, len(changed))
