"""What a worker knows of its upstreams, whichever version of the policies names them."""

from __future__ import annotations

from gateway.fleet.budget import RetryBudget


class FleetMemory:
    """By model's name, so that a reload of the policies forgets nothing."""

    def __init__(self) -> None:
        self._budgets: dict[str, RetryBudget] = {}

    def budget(self, model: str) -> RetryBudget:
        """The budget of a model's retries."""
        return self._budgets.setdefault(model, RetryBudget())
