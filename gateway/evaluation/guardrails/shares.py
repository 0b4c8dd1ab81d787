"""Recall and false positives with their intervals, and how tables show them."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backend.classifiers.measures import auc, wilson

Array = NDArray[np.float64]
RATES = (0.01, 0.001)


def detection(positive: Sequence[float], negative: Sequence[float], shipped: float) -> dict[str, Any]:
    """AUROC against ordinary texts; recall at thresholds for RATES of them, and at the shipped threshold."""
    scores = np.array([*positive, *negative])
    labels = np.arange(len(scores)) < len(positive)
    area = auc(scores, labels)
    found: dict[str, Any] = {
        "n": len(positive),
        "num_ordinary": len(negative),
        "auroc": area,
        "auroc_interval": None if area is None else _auc_interval(area, len(positive), len(negative)),
        "recall_shipped": share(np.array(positive) >= shipped),
    }
    for rate in RATES:
        limit = threshold_for(np.array(negative), rate)
        found[f"recall_at_{rate:g}"] = share(np.array(positive) > limit) if negative else None
    return found


def threshold_for(negative: Array, rate: float) -> float:
    """Above this score lies at most this share of the negatives."""
    if not len(negative):
        return 1.0
    return float(np.sort(negative)[::-1][int(rate * len(negative))])


def share(hits: NDArray[np.bool_]) -> dict[str, Any]:
    """With its 95 % interval (Wilson)."""
    return {
        "share": float(hits.mean()) if len(hits) else None,
        "interval": list(wilson(int(hits.sum()), len(hits))),
        "n": len(hits),
    }


def _auc_interval(area: float, num_positive: int, num_negative: int) -> list[float]:
    """95 %, after Hanley and McNeil (1982)."""
    q1, q2 = area / (2 - area), 2 * area * area / (1 + area)
    variance = area * (1 - area) + (num_positive - 1) * (q1 - area**2) + (num_negative - 1) * (q2 - area**2)
    margin = 1.96 * sqrt(max(0.0, variance) / (num_positive * num_negative))
    return [max(0.0, area - margin), min(1.0, area + margin)]


def percent(found: dict[str, Any] | None) -> str:
    """`52.1 (47–57)`, in %."""
    if found is None or found["share"] is None:
        return "–"
    low, high = found["interval"]
    return f"{100 * found['share']:.1f} ({100 * low:.0f}–{100 * high:.0f})"


def area(found: dict[str, Any]) -> str:
    """`0.93 (0.91–0.94)`."""
    if found["auroc"] is None:
        return "–"
    low, high = found["auroc_interval"]
    return f"{found['auroc']:.3f} ({low:.2f}–{high:.2f})"
