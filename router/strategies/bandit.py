"""The candidate that feedback speaks for; the less is known about the others, the more they are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from router.strategies.base import Candidate, Decision


@dataclass(frozen=True, slots=True)
class Bandit:
    """Thompson sampling: argmax of a draw from Beta(1 + good, 1 + bad) - cost_weight * cost."""

    cost_weight: float = 0.0
    name: str = "bandit"

    def choose(self, candidates: Sequence[Candidate], gain: float | None, draw: float) -> Decision:
        """The candidate with the best draw from its posterior, less its cost."""
        random = Random(draw)
        values = [
            random.betavariate(1 + each.good, 1 + each.bad) - self.cost_weight * each.cost
            for each in candidates
        ]
        best = max(range(len(candidates)), key=values.__getitem__)
        found = candidates[best]
        reason = f"drew {values[best]:.2f} for it after {found.good + found.bad:.6g} judgements"
        shown = {each.model: round(value, 4) for each, value in zip(candidates, values, strict=True)}
        return Decision(found.model, self.name, reason, shown)
