"""Heads: does the right answer change with time; does the question depend on the turns before it."""

from cache.heads.followup import needs_context
from cache.heads.timeliness import freshness, time_dependence

__all__ = ["freshness", "needs_context", "time_dependence"]
