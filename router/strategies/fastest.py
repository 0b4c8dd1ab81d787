"""The candidate with the least expected time to the first token, of two drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from router.strategies.base import Candidate, Decision


@dataclass(frozen=True, slots=True)
class Fastest:
    """Power of two choices (Mitzenmacher, 2001): measurements are late, and the best would be overrun."""

    name: str = "fastest"

    def choose(self, candidates: Sequence[Candidate], gain: float | None, draw: float) -> Decision:
        """The faster of two candidates that are drawn."""
        count = len(candidates)
        pair = int(draw * count * (count - 1)) if count > 1 else 0
        first, second = divmod(pair, count - 1) if count > 1 else (0, 0)
        second += second >= first and count > 1
        chosen = min((candidates[first], candidates[second]), key=lambda each: each.latency_s)
        seconds = f"{chosen.latency_s:.3f} s" if chosen.latency_s else "not measured yet"
        reason = f"time to first token {seconds}, the less of two drawn"
        values = {each.model: round(each.latency_s, 4) for each in candidates}
        return Decision(chosen.model, self.name, reason, values)
