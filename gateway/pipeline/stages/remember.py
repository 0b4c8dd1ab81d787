"""remember: keep the answer while it is sent, and store it when it has ended well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cache.heads import freshness
from cache.lifetime import lifetime_s
from gateway.answer import Generated, Relayed
from gateway.pipeline.exchange import Exchange
from gateway.response_cache.recording import record
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.use import HITS, CacheUse

STORED_FINISH_REASONS = ["stop"]
"""A truncated answer or a tool call is right once only."""


class Remember:
    """The stage, with what all its requests share."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache

    async def __call__(self, exchange: Exchange) -> None:
        """Share the answer of a flight that this exchange leads, and store it at its end."""
        use, answer = exchange.cache_use, exchange.answer
        if use is None or use.outcome in HITS or not use.may_write:
            return
        assert isinstance(answer, Generated | Relayed)  # of a chat request
        flight = use.flight or self._cache.flights.start(use.question.key)
        use.flight = flight

        def complete(items: Sequence[Any]) -> None:
            self._store(use, answer, items)

        exchange.answer = flight.lead(answer, complete)

    def _store(self, use: CacheUse, answer: Generated | Relayed, items: Sequence[Any]) -> None:
        if isinstance(answer, Generated):
            reasons = [delta.finish_reason for delta in items if delta.finish_reason is not None]
        else:
            reasons = list(answer.finish_reasons)
        if reasons != STORED_FINISH_REASONS:
            return
        ttl_s = use.settings.ttl_s
        if use.vector is not None:
            ttl_s = lifetime_s(freshness(use.question.text, use.vector), ttl_s)
        if not ttl_s:
            return
        self._cache.answers.add(
            use.question,
            use.vector,
            record(answer, items),
            answer.usage.completion_tokens,
            ttl_s,
        )
