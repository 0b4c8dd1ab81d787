"""How long the right answer to a question stays right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cache.classifiers.linear import WEIGHTS, load_head

Array = NDArray[np.float32]
Freshness = Literal["static", "slow", "volatile", "never"]

TIME_DEPENDENT = 0.5
"""P from which a question without other markers counts as slow."""
SLOW_TTL_S = 6 * 3600.0
"""For answers that change in weeks: prices of things, office holders, records."""
VOLATILE_TTL_S = 60.0
"""For answers that change in minutes: weather, scores, what is open now."""

_LINES = Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()[1:]
_PATTERNS = [(kind, re.compile(pattern)) for kind, _, pattern in (line.partition(" ") for line in _LINES)]
_MARKERS = [pattern for kind, pattern in _PATTERNS if kind == "marker"]
_RULES = dict(_PATTERNS)


def markers(text: str) -> list[float]:
    """1 for each word marker that occurs, then length and whether digits occur."""
    lower = text.lower()
    found = [1.0 if marker.search(lower) else 0.0 for marker in _MARKERS]
    return [*found, min(len(lower), 120) / 120, float(any(map(str.isdigit, lower)))]


def time_dependence(text: str, vector: Array, weights: Path = WEIGHTS) -> float:
    """P(the right answer changes with time); `vector` is the sentence vector, of length 1."""
    return load_head("freshness", weights).probability(markers(text), vector)


def freshness(text: str, vector: Array | None, weights: Path | None = WEIGHTS) -> Freshness:
    """static, slow (changes in weeks), volatile (in minutes), or never: about the asker's own data.

    Without a vector, or without `weights` of its encoder, only what the words alone tell.
    """
    lower = text.lower()
    if _RULES["personal"].search(lower) and not _RULES["generic"].search(lower):
        return "never"
    if _RULES["timeless"].search(lower):
        return "static"
    if _RULES["volatile"].search(lower):
        return "volatile"
    if vector is None or weights is None:
        return "static"
    return "slow" if time_dependence(text, vector, weights) >= TIME_DEPENDENT else "static"


def lifetime_s(kind: Freshness, ttl_s: float) -> float:
    """Seconds to live; the policy's at most, and those of the asker's own data are volatile."""
    return min(ttl_s, {"static": ttl_s, "slow": SLOW_TTL_S}.get(kind, VOLATILE_TTL_S))
