"""remember: keep the answer while it is sent, and store it when it has ended well."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from numpy import float32
from numpy.typing import NDArray

from cache.classifiers import freshness
from cache.classifiers.timeliness import lifetime_s
from gateway.answer import Generated, Relayed
from gateway.exchange.exchange import Exchange, Stage
from gateway.response_cache.flights import share_of
from gateway.response_cache.recording import ends_of, record
from gateway.response_cache.response_cache import ResponseCache
from gateway.response_cache.use import HITS, CacheUse

THREAD_FROM_CHARS = 4_000
"""Questions of this length are searched for personal data in a thread."""


class Remember(Stage):
    """The stage, with what all its requests share."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._tasks: set[asyncio.Task[None]] = set()

    async def enter(self, exchange: Exchange) -> None:
        """Share the answer of a flight that this exchange leads, and store it at its end."""
        use, answer, meaning = exchange.cache_use, exchange.answer, exchange.meaning
        if use is not None and use.flight is not None and exchange.attempts.failed_models:
            use.flight.abandon()  # those who wait for it ask now, not at the end of this answer
        if use is None or use.outcome in HITS or not use.may_write or exchange.attempts.failed_models:
            return  # the answer of a model that took over is not the one that was looked up
        assert isinstance(answer, Generated | Relayed)  # of a chat request
        use.flight = use.flight or self._cache.flights.start(use.question)
        vector = meaning.start() if use.is_semantic and meaning is not None else None

        def complete(items: Sequence[Any]) -> None:
            if len(use.question.text) >= THREAD_FROM_CHARS:  # too long for a vector
                task = asyncio.create_task(self._store_long(use, answer, items))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif vector is None:
                self._store(use, answer, items, None)
            elif vector.done():
                self._store(use, answer, items, vector.result())
            else:
                vector.add_done_callback(lambda done: self._store(use, answer, items, done.result()))

        exchange.answer = shared = use.flight.lead(answer, complete)
        use.share = share_of(shared)

    def _store(
        self,
        use: CacheUse,
        answer: Generated | Relayed,
        items: Sequence[Any],
        vector: NDArray[float32] | None,
    ) -> None:
        if use.may_write and use.is_stored(ends_of(answer, items)):
            self._add(use, answer, items, vector)

    async def _store_long(self, use: CacheUse, answer: Generated | Relayed, items: Sequence[Any]) -> None:
        """Look for personal data in a thread, so that a megabyte does not hold up other requests."""
        if use.may_write and await asyncio.to_thread(use.is_stored, ends_of(answer, items)):
            self._add(use, answer, items, None)

    def _add(
        self,
        use: CacheUse,
        answer: Generated | Relayed,
        items: Sequence[Any],
        vector: NDArray[float32] | None,
    ) -> None:
        text, tokens = use.question.text, answer.usage.completion_tokens
        heads = self._cache.heads
        ttl_s = lifetime_s(freshness(text, vector, heads), use.settings.ttl_s)
        vector = vector if vector is not None and use.is_comparable(vector, heads) else None
        self._cache.answers.add(use.question, vector, record(answer, items), tokens, ttl_s, use.asked_s)
