"""How one request uses the cache, and whether it may at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy import float32
from numpy.typing import NDArray

from cache.question import Question
from cache.settings import CacheSettings
from gateway.response_cache.flights import Flight

Outcome = Literal["exact", "semantic", "shared", "near", "miss", "bypass"]
"""Where the answer came from. `shared`: from an equal request under way; `near`: a stored one was a draft."""

HITS: frozenset[Outcome] = frozenset({"exact", "semantic", "shared"})
"""Outcomes without a model call of the request's own."""


@dataclass(slots=True, eq=False)
class CacheUse:
    """Filled by look_up, read by remember and account."""

    settings: CacheSettings
    question: Question
    may_write: bool
    outcome: Outcome = "miss"
    vector: NDArray[float32] | None = None
    flight: Flight | None = None  # led by this request
    headers: dict[str, str] = field(default_factory=dict)


def bypass_reason(body: Mapping[str, Any], settings: CacheSettings) -> str:
    """Why a request neither reads nor writes the cache; "" when it does both."""
    if (body.get("n") or 1) != 1:
        return "n is not 1"
    temperature = body.get("temperature")
    if temperature is not None and temperature > settings.max_temperature:
        return "temperature is above the policy's max_temperature"
    if body.get("store"):
        return "the answer is to be stored under an id"
    return ""
