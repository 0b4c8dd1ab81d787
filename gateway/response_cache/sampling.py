"""Sampled verification: a share of the answers served by meaning is also asked of the model, and compared."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Literal

from numpy import float32
from numpy.typing import NDArray

from backend.errors import EngineError
from cache.verify.words import read
from gateway.errors import ApiError

Embed = Callable[[str], Awaitable["NDArray[float32] | None"]]
"""The vector of a text, or None when there is no encoder or it does not answer."""

OnJudged = Callable[[bool], None]
Verdict = Literal["right", "wrong", "unsure"]

MAX_RUNNING = 1
"""Checks at a time in one worker; hits beyond are not checked."""
TIMEOUT_S = 120.0
SAME_COSINE = 0.9
"""Two wordings of one answer, if their numbers and negations agree. Not calibrated: strict, so that what is
called right is; most other pairs of wordings are unsure and do not count."""
OTHER_COSINE = 0.5
"""Answers further apart are about different things."""


class Sampler:
    """Runs checks in the background."""

    def __init__(self, embed: Embed, on_verdict: Callable[[str, Verdict], None]) -> None:
        """`on_verdict` gets the model's name and each verdict."""
        self._embed = embed
        self._on_verdict = on_verdict
        self._running: set[asyncio.Task[None]] = set()
        self._random = random.Random()

    def consider(
        self, share: float, model: str, texts: Callable[[], Awaitable[tuple[str, str]]], on_judged: OnJudged
    ) -> None:
        """Check a hit with probability `share`; `texts` gives the stored answer and the model's own.

        `on_judged` gets whether they agree, unless that is unclear.
        """
        if len(self._running) >= MAX_RUNNING or self._random.random() >= share:
            return
        task = asyncio.create_task(self._check(model, texts, on_judged))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _check(
        self, model: str, texts: Callable[[], Awaitable[tuple[str, str]]], on_judged: OnJudged
    ) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                verdict = await self._compare(*await texts())
        except (ApiError, EngineError, TimeoutError):
            return  # the model is away or busy
        self._on_verdict(model, verdict)
        if verdict != "unsure":
            on_judged(verdict == "right")

    async def _compare(self, one: str, other: str) -> Verdict:
        """Whether two answers say the same."""
        if one.split() == other.split():
            return "right"
        first, second = read(one), read(other)
        if first.numbers != second.numbers:
            return "wrong"
        vectors = [await self._embed(text) for text in (one, other)]
        if vectors[0] is None or vectors[1] is None:
            return "unsure"
        cosine = float(vectors[0] @ vectors[1])
        if cosine < OTHER_COSINE:
            return "wrong"
        if cosine < SAME_COSINE:
            return "unsure"
        return "right" if first.num_negations == second.num_negations else "wrong"
