"""Exponential moving averages by model, as one gateway worker has measured them."""

from __future__ import annotations

WEIGHT = 0.2
"""Weight of a new measurement."""


class MovingMeans:
    """Moving means of one quantity, by model."""

    def __init__(self, default: float) -> None:
        """`default`: of a model that has not been measured."""
        self._means: dict[str, float] = {}
        self._default = default

    def observe(self, model: str, value: float) -> None:
        """Add a measurement."""
        known = self._means.get(model, value)
        self._means[model] = known + WEIGHT * (value - known)

    def expected(self, model: str) -> float:
        """The mean of a model."""
        return self._means.get(model, self._default)
