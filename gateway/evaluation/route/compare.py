"""A route beside always asking the strong model: the same questions in pairs, with intervals.

Cost is work at equal load. A route splits its questions over two engines, whose batches are then smaller
than when one engine gets them all, and a smaller batch takes more seconds for a token. So the tokens of both
engines count, rejected answers of a cascade included, each at the seconds that a token took its engine when
it answered all questions alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.evaluation.route.machine import Work

Array = NDArray[np.float64]
NUM_RESAMPLES = 2_000
INTERVAL = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A question as the route and the strong model answered it."""

    family: str
    route_right: bool
    strong_right: bool
    route_s: float
    strong_s: float


def ratios(pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """Accuracy and cost of the route in those of the strong model: the ratio and its 95 % interval."""
    table = np.array([(p.route_right, p.strong_right, p.route_s, p.strong_s) for p in pairs], np.float64)
    counts = np.random.default_rng(0).multinomial(
        len(pairs), np.full(len(pairs), 1 / len(pairs)), NUM_RESAMPLES
    )
    sums = counts @ table  # bootstrap over questions: both answers to a question stay together
    return {
        name: [
            round(float(value), 4)
            for value in (
                _ratio(table.sum(0), *columns),
                *np.percentile(_ratio(sums, *columns), INTERVAL),
            )
        ]
        for name, columns in (("accuracy", (0, 1)), ("cost", (2, 3)))
    }


def by_family(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """Per family: questions, both accuracies, the ratio of costs."""
    found = {}
    for family in dict.fromkeys(pair.family for pair in pairs):
        own = [pair for pair in pairs if pair.family == family]
        found[family] = {
            "questions": len(own),
            "route": round(sum(pair.route_right for pair in own) / len(own), 4),
            "strong": round(sum(pair.strong_right for pair in own) / len(own), 4),
            "cost": round(sum(p.route_s for p in own) / max(1e-12, sum(p.strong_s for p in own)), 4),
        }
    return found


def seconds_of(work: Mapping[str, Work], per_token: Mapping[str, float]) -> float:
    """The time of all engines, at these seconds per token."""
    return sum(each.tokens * per_token.get(model, 0.0) for model, each in work.items())


def _ratio(sums: Array, part: int, whole: int) -> Array:
    found: Array = sums[..., part] / np.maximum(sums[..., whole], 1e-12)
    return found
