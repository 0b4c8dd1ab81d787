"""Ways to choose among candidates. Each is a pure function of them and of what is predicted."""

from router.strategies.bandit import Bandit
from router.strategies.base import Candidate, Decision, Strategy, predicted_quality
from router.strategies.cheapest import Cheapest
from router.strategies.fastest import Fastest
from router.strategies.of_policies import strategy_of
from router.strategies.quality_per_cost import QualityPerCost

__all__ = [
    "Bandit", "Candidate", "Cheapest", "Decision", "Fastest", "QualityPerCost", "Strategy",
    "predicted_quality", "strategy_of",
]  # fmt: skip
