"""A profile of guardrails, compiled once for one version of the policies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy import float32
from numpy.typing import NDArray

from guardrails.checks.classifier import Classifier
from guardrails.checks.topics import Topic
from guardrails.screen.hooks import Hook
from guardrails.screen.known import KnownTexts
from guardrails.screen.named_check import NamedCheck
from guardrails.screen.threads import ThreadPool
from guardrails.screen.verdicts import Judgement
from policies.guardrails import GuardrailProfile

Vectors = NDArray[float32]
EmbedTexts = Callable[[Sequence[str]], Awaitable["Vectors | None"]]
"""(texts, dimensions) of unit length; None when the encoder does not answer."""

MAX_TEXTS = 64
"""Embedded in one message to the encoder, so that one long request does not delay others."""


async def no_vectors(texts: Sequence[str]) -> Vectors | None:
    """Used where the policies have no encoder."""
    return None


class EncoderFailed(Exception):
    """The encoder did not answer in time, so that checks could not be made."""


class Guard:
    """What all requests with one profile share."""

    def __init__(
        self,
        profile: GuardrailProfile,
        embed: EmbedTexts,
        hooks: Mapping[str, Hook],
        classifier: Classifier | None = None,
        *,
        threads: ThreadPool,
        checks: Mapping[str, NamedCheck] = MappingProxyType({}),
    ) -> None:
        """`hooks`, `checks`: by the profile's names; `classifier`: other weights than the shipped.

        `threads`: for long texts.
        """
        self.profile = profile
        self.classifier = classifier
        self.hooks = dict(hooks)
        self.checks = dict(checks)
        self.threads = threads
        self.known: KnownTexts[Judgement] = KnownTexts()
        self._embed = embed
        self._topics: dict[str, Topic] | None = None

    @property
    def asked(self) -> list[Hook | NamedCheck]:
        """What looks at whole texts, for the operator: hooks and named checks."""
        return [*self.hooks.values(), *self.checks.values()]

    async def vectors(self, texts: Sequence[str], turn: asyncio.Semaphore | None = None) -> Vectors:
        """(texts, dimensions). Raises EncoderFailed.

        `turn`: bounds the messages of one tenant that the encoder has at a time.
        """
        turn = turn or asyncio.Semaphore()
        found = []
        for start in range(0, len(texts), MAX_TEXTS):
            async with turn:
                found.append(await self._vectors(texts[start : start + MAX_TEXTS]))
        return np.concatenate(found)

    async def _vectors(self, texts: Sequence[str]) -> Vectors:
        try:
            async with asyncio.timeout(self.profile.timeout_ms / 1000):
                found = await self._embed(texts)
        except TimeoutError:
            found = None
        if found is None:
            raise EncoderFailed
        return found

    async def topics(self) -> Mapping[str, Topic]:
        """The profile's topics; their examples are embedded at the first request. Raises EncoderFailed."""
        if self._topics is None:
            topics = {}
            for name, rules in self.profile.topics.items():
                topics[name] = Topic(await self.vectors(rules.examples), rules.min_similarity)
            self._topics = topics
        return self._topics
