"""The strategy that a `choose` of the policies names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from policies.choose import Choose, StrategyName
from router.strategies.bandit import Bandit
from router.strategies.base import Strategy
from router.strategies.cheapest import Cheapest
from router.strategies.fastest import Fastest
from router.strategies.quality_per_cost import QualityPerCost

_STRATEGIES: Mapping[StrategyName, Callable[[Choose], Strategy]] = {
    "quality_per_cost": lambda rules: QualityPerCost(
        rules.cost_weight, rules.latency_weight, rules.strong_share
    ),
    "cheapest": lambda rules: Cheapest(rules.min_quality),
    "fastest": lambda rules: Fastest(),
    "bandit": lambda rules: Bandit(rules.cost_weight),
}


def strategy_of(rules: Choose) -> Strategy:
    """A new one, which has learned nothing."""
    return _STRATEGIES[rules.strategy](rules)
