"""How long an answer may be served: the policy's time, or less when the right answer changes."""

from __future__ import annotations

from cache.heads.timeliness import Freshness

SLOW_TTL_S = 6 * 3600.0
"""For answers that change in weeks: prices of things, office holders, records."""
VOLATILE_TTL_S = 60.0
"""For answers that change in minutes: weather, scores, what is open now."""


def lifetime_s(freshness: Freshness, ttl_s: float) -> float:
    """Seconds to live; those of a question about the asker's own data change at any time."""
    limits = {"static": ttl_s, "slow": SLOW_TTL_S}
    return min(ttl_s, limits.get(freshness, VOLATILE_TTL_S))
