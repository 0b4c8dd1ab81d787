"""How long models took lately to the first piece of an answer, as one gateway worker has seen it."""

from __future__ import annotations

EMA_WEIGHT = 0.2
"""Of a new measurement in the exponential moving average."""


class Latencies:
    """Time to the first piece, by model."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def observe(self, model: str, seconds: float) -> None:
        """Add a measurement."""
        known = self._seconds.get(model, seconds)
        self._seconds[model] = known + EMA_WEIGHT * (seconds - known)

    def expected_s(self, model: str) -> float:
        """0.0 for a model that has not answered yet: it is tried."""
        return self._seconds.get(model, 0.0)
