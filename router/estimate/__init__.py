"""The expected gain of the strongest model over the cheapest, learned from outcomes of both."""

from router.estimate.asking import asking_part
from router.estimate.estimate import Estimate, Prediction, builtin_names, load_estimate

__all__ = ["Estimate", "Prediction", "asking_part", "builtin_names", "load_estimate"]
