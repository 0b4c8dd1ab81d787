"""The candidate with the most predicted quality less what its cost and time are worth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from router.strategies.base import Candidate, Decision, predicted_quality

WINDOW = 512
"""Recent requests on which the cost weight is calibrated."""
MIN_WINDOW = 50
"""With fewer the policy's cost weight holds."""
CALIBRATE_EVERY = 16
"""Requests between two calibrations."""
MAX_WEIGHT = 64.0
STEPS = 24
"""Steps of the bisection."""

SWITCH_QUALITY = 0.05
"""What it is worth that a prompt is wholly in a prefix cache: another model would compute it again."""


@dataclass(slots=True)
class QualityPerCost:
    """argmax of quality - cost_weight * cost - latency_weight * latency_s + worth of the prefix cache.

    With `strong_share`, or while `usd_target` is set, the cost weight is the least with which at most that
    share of recent requests would have gone to the best candidate, or would have cost that in the mean.
    """

    cost_weight: float = 0.1
    latency_weight: float = 0.0
    strong_share: float | None = None
    usd_target: float | None = None
    name: str = "quality_per_cost"
    _recent: deque[_Recent] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _num_seen: int = 0
    _calibrated: float | None = None

    def choose(self, candidates: Sequence[Candidate], gain: float | None, draw: float) -> Decision:
        """The candidate with the best quality less weighted cost."""
        worth = [
            quality - self.latency_weight * each.latency_s + SWITCH_QUALITY * each.cached_share
            for each, quality in zip(candidates, predicted_quality(candidates, gain), strict=True)
        ]
        weight = self._weight(candidates, worth)
        values = [value - weight * each.cost for each, value in zip(candidates, worth, strict=True)]
        best = max(range(len(candidates)), key=lambda index: (values[index], -candidates[index].cost))
        shown = {each.model: round(value, 4) for each, value in zip(candidates, values, strict=True)}
        found = "no estimate" if gain is None else f"gain {gain:.2f}"
        return Decision(candidates[best].model, self.name, f"{found}, cost weight {weight:.3f}", shown)

    def _weight(self, candidates: Sequence[Candidate], worth: list[float]) -> float:
        if self.strong_share is None and self.usd_target is None:
            return self.cost_weight
        self._recent.append(_Recent.of(candidates, worth))
        self._num_seen += 1
        if len(self._recent) >= MIN_WINDOW and (
            self._calibrated is None or self._num_seen % CALIBRATE_EVERY == 0
        ):
            self._calibrated = self._calibrate()
        return self.cost_weight if self._calibrated is None else self._calibrated

    def _calibrate(self) -> float:
        width = max(len(each.worth) for each in self._recent)
        worth, cost, usd, best = (
            np.array([getattr(each, name) + (missing,) * (width - len(each.worth)) for each in self._recent])
            for name, missing in (("worth", -np.inf), ("cost", 0.0), ("usd", 0.0), ("best", 0.0))
        )
        rows = np.arange(len(worth))
        spent, target = (usd, self.usd_target) if self.usd_target is not None else (best, self.strong_share)
        assert target is not None

        def mean_of(weight: float) -> float:
            return float(spent[rows, (worth - weight * cost).argmax(1)].mean())

        low, high = 0.0, MAX_WEIGHT
        if mean_of(low) <= target:
            return low
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if mean_of(middle) <= target else (middle, high)
        return high


@dataclass(frozen=True, slots=True)
class _Recent:
    """What is kept of a request, by candidate."""

    worth: tuple[float, ...]
    cost: tuple[float, ...]
    usd: tuple[float, ...]
    best: tuple[float, ...]  # 1.0 for the candidate of the highest quality

    @classmethod
    def of(cls, candidates: Sequence[Candidate], worth: list[float]) -> _Recent:
        top = max(each.quality for each in candidates)
        return cls(
            tuple(worth),
            tuple(each.cost for each in candidates),
            tuple(each.usd for each in candidates),
            tuple(float(each.quality == top) for each in candidates),
        )
