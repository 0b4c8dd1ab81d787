"""What the requests of one worker share: stored answers, model calls under way, and the encoder."""

from __future__ import annotations

from dataclasses import dataclass, field

from cache.semantic_cache import SemanticCache
from gateway.response_cache.flights import Flights
from gateway.response_cache.sampling import Embed, Sampler


@dataclass(frozen=True, slots=True)
class ResponseCache:
    """Built once per worker."""

    answers: SemanticCache
    embed: Embed
    sampler: Sampler
    flights: Flights = field(default_factory=Flights)
