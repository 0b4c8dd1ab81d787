"""What the requests of one worker share: stored answers, model calls under way, and the encoder."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from backend.encoder.language import language_of
from cache.classifiers.linear import WEIGHTS
from cache.entry import Selector
from cache.semantic_cache import SemanticCache
from cache.verify.guards import ENGLISH
from gateway.response_cache.flights import Flights
from gateway.response_cache.sampling import Embed, Sampler
from gateway.response_cache.use import CacheUse


@dataclass(frozen=True, slots=True)
class ResponseCache:
    """Built once per worker."""

    answers: SemanticCache
    embed: Embed
    sampler: Sampler
    languages: Collection[str] = ENGLISH  # that the encoder reads
    heads: Path | None = WEIGHTS  # that read the vectors of `embed`; None: there are none of its encoder
    flights: Flights = field(default_factory=Flights)
    _tasks: set[asyncio.Task[int]] = field(default_factory=set)

    async def start(self) -> None:
        """Load what tells languages, which would make the first question wait."""
        await asyncio.to_thread(language_of, "")

    async def close(self) -> None:
        """Nothing is open."""

    def settle(self, use: CacheUse, *, is_flagged: bool) -> None:
        """Called when a request has ended; `is_flagged`: a guardrail found something in its answer.

        Such an answer is screened each time that it is served, but it is not to be kept either.
        """
        if use.flight is not None:
            use.flight.abandon()  # where it has no answer to share
        if is_flagged and not use.is_flagged and "flagged" not in use.settings.store:
            use.may_write = False
            self.discard(use.entry_key, use.question.tenant)

    def discard(self, key: bytes, tenant: str) -> None:
        """Forget one entry, soon."""
        task = asyncio.create_task(self.answers.forget(Selector("entry", key.hex(), tenant)))
        self._tasks.add(task)
        task.add_done_callback(self._forgotten)

    def _forgotten(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # Redis is away: it is screened again there
