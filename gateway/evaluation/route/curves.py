"""What other thresholds would have given: accuracy over machine seconds, of both ways to route."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

POINTS = 21


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that both models have answered."""

    weak_right: bool
    strong_right: bool
    weak_s: float  # of the machine
    strong_s: float
    gain: float  # predicted
    confidence: float  # of the weak model's answer; NaN: not told


Curve = list[dict[str, float]]


def gain_curve(asked: Sequence[Asked]) -> Curve:
    """With each share of strong calls, those of the highest predicted gain."""
    order = sorted(asked, key=lambda each: -each.gain)
    return [
        _point(order, round(step / (POINTS - 1) * len(order)), is_cascade=False) for step in range(POINTS)
    ]


def cascade_curve(asked: Sequence[Asked]) -> Curve:
    """The weak model answers all; with each share of escalations, those of the least confidence."""
    order = sorted(asked, key=lambda each: -1.0 if math.isnan(each.confidence) else each.confidence)
    return [_point(order, count, is_cascade=True) for count in _counts(order)]


def _counts(order: Sequence[Asked]) -> list[int]:
    return [round(step / (POINTS - 1) * len(order)) for step in range(POINTS)]


def _point(order: Sequence[Asked], num_strong: int, *, is_cascade: bool) -> dict[str, float]:
    strong, weak = order[:num_strong], order[num_strong:]
    right = sum(each.strong_right for each in strong) + sum(each.weak_right for each in weak)
    seconds = sum(each.strong_s for each in strong) + sum(each.weak_s for each in weak)
    if is_cascade:
        seconds += sum(each.weak_s for each in strong)
    count = max(1, len(order))
    return {
        "strong_share": round(num_strong / count, 4),
        "accuracy": round(right / count, 4),
        "machine_s": round(seconds, 4),
    }
