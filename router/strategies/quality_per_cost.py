"""The candidate with the most predicted quality less what its cost and time are worth."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from router.strategies.base import Candidate, Decision, predicted_quality

WINDOW = 1_000
"""Recent requests whose gains set the cost weight for a target share."""

MIN_WINDOW = 50
"""With fewer the policy's cost weight holds."""

SWITCH_QUALITY = 0.05
"""What it is worth that a prompt is wholly in a prefix cache: another model would compute it again."""


@dataclass(slots=True)
class QualityPerCost:
    """argmax of quality - cost_weight * cost - latency_weight * latency_s + worth of the prefix cache."""

    cost_weight: float = 0.1
    latency_weight: float = 0.0
    strong_share: float | None = None  # in place of `cost_weight`: the share of the best candidate to aim at
    name: str = "quality_per_cost"
    _gains: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def choose(self, candidates: Sequence[Candidate], gain: float | None, draw: float) -> Decision:
        """See `Strategy.choose`."""
        weight = self._weight(candidates, gain)
        qualities = predicted_quality(candidates, gain)
        values = [
            quality
            - weight * each.cost
            - self.latency_weight * each.latency_s
            + SWITCH_QUALITY * each.cached_share
            for each, quality in zip(candidates, qualities, strict=True)
        ]
        best = max(range(len(candidates)), key=lambda index: (values[index], -candidates[index].cost))
        shown = {each.model: round(value, 4) for each, value in zip(candidates, values, strict=True)}
        found = "no estimate" if gain is None else f"gain {gain:.2f}"
        reason = f"{found}, cost weight {weight:.3f}"
        return Decision(candidates[best].model, self.name, reason, shown)

    def _weight(self, candidates: Sequence[Candidate], gain: float | None) -> float:
        """The cost weight at which the target share of recent requests would have got the best candidate."""
        if self.strong_share is None or gain is None:
            return self.cost_weight
        self._gains.append(gain)
        if len(self._gains) < MIN_WINDOW:
            return self.cost_weight
        ordered = sorted(self._gains)
        threshold = ordered[min(len(ordered) - 1, int((1 - self.strong_share) * len(ordered)))]
        best = max(candidates, key=lambda each: each.quality)
        span = best.quality - min(each.quality for each in candidates)
        # The best one wins against another where gain * (difference in quality / span) > weight * (in cost).
        ratios = [
            (best.cost - each.cost) * span / (best.quality - each.quality)
            for each in candidates
            if each.quality < best.quality and each.cost < best.cost
        ]
        return max(0.0, threshold / max(ratios)) if ratios else self.cost_weight
