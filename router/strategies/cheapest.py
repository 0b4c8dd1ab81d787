"""The cheapest candidate that is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.strategies.base import Candidate, Decision, predicted_quality


@dataclass(frozen=True, slots=True)
class Cheapest:
    """The least cost among those of at least `min_quality`; the best one where none is."""

    min_quality: float = 0.0
    name: str = "cheapest"

    def choose(self, candidates: Sequence[Candidate], gain: float | None, draw: float) -> Decision:
        """The cheapest candidate of sufficient quality, or else the best one."""
        found = [*zip(candidates, predicted_quality(candidates, gain), range(len(candidates)), strict=True)]
        good = [each for each in found if each[1] >= self.min_quality]
        if good:
            model, quality, _ = min(good, key=lambda each: (each[0].cost, -each[1], each[2]))
            reason = f"quality {quality:.2f} is at least {self.min_quality:g}, at the least cost"
        else:
            model, quality, _ = max(found, key=lambda each: each[1])
            reason = f"no quality is at least {self.min_quality:g}; {quality:.2f} is the highest"
        return Decision(model.model, self.name, reason, {each[0].model: round(each[1], 4) for each in found})
