"""Two classifiers of questions: does the right answer change with time; do earlier turns matter."""

from cache.classifiers.followup import needs_context
from cache.classifiers.timeliness import freshness, time_dependence

__all__ = ["freshness", "needs_context", "time_dependence"]
