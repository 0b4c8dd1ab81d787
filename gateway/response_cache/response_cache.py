"""What the requests of one worker share: stored answers, model calls under way, and the encoder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from numpy import float32
from numpy.typing import NDArray

from cache.semantic_cache import SemanticCache
from gateway.response_cache.flights import Flights


@dataclass(frozen=True, slots=True)
class ResponseCache:
    """`embed` gives the vector of a text, or None when there is no encoder or it does not answer."""

    answers: SemanticCache
    embed: Callable[[str], Awaitable[NDArray[float32] | None]]
    flights: Flights = field(default_factory=Flights)
