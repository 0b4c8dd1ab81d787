"""The nouns of a choice: candidates, and the decision with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that can answer the request."""

    model: str
    quality: float  # mean score on usual requests, 0 to 1
    cost: float  # expected for this request, relative to the dearest candidate's: 0 to 1
    latency_s: float = 0.0  # expected time to the first token; 0: unknown
    cached_share: float = 0.0  # of the prompt, in its prefix cache
    usd: float = 0.0  # expected price of this request
    good: float = 0.0  # lately judged: a sum of scores from 0 to 1
    bad: float = 0.0  # and of what was missing to 1


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen model and why. `values` are numbers and names only, never text of the prompt."""

    model: str
    strategy: str
    reason: str
    values: Mapping[str, float]


class Strategy(Protocol):
    """Chooses one of at least one candidates."""

    @property
    def name(self) -> str:
        """The name that policies call it by."""
        ...

    def choose(self, candidates: Sequence[Candidate], gain: float | None, draw: float) -> Decision:
        """`gain`: predicted for the best candidate over the worst; None: no estimate. `draw`: 0 to 1."""
        ...


def predicted_quality(candidates: Sequence[Candidate], gain: float | None) -> list[float]:
    """For each candidate, its quality on this request.

    The best candidate has its usual quality, the worst that much less as the gain says, the others lie
    between as their usual qualities do.
    """
    best = max(each.quality for each in candidates)
    span = best - min(each.quality for each in candidates)
    if gain is None or span <= 0:
        return [each.quality for each in candidates]
    return [best - gain * (best - each.quality) / span for each in candidates]
