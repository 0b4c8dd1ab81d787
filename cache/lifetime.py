"""How long an answer may be served: the policy's time, or less when the right answer changes."""

from __future__ import annotations

from cache.heads.timeliness import Freshness

SLOW_TTL_S = 6 * 3600.0
"""For answers that change in weeks: prices of things, office holders, records."""
VOLATILE_TTL_S = 60.0
"""For answers that change in minutes: weather, scores, what is open now."""


def lifetime_s(freshness: Freshness, ttl_s: float) -> float:
    """Seconds to live; 0 for a question about the asker's own data, whose answer is not stored."""
    if freshness == "never":
        return 0.0
    limits = {"static": ttl_s, "slow": SLOW_TTL_S, "volatile": VOLATILE_TTL_S}
    return min(ttl_s, limits[freshness])
