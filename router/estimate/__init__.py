"""The expected gain of the strongest model over the cheapest, learned from outcomes of both."""

from router.estimate.estimate import Estimate, Prediction, builtin_names, load_estimate

__all__ = ["Estimate", "Prediction", "builtin_names", "load_estimate"]
