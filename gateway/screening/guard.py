"""A profile of guardrails, compiled once for one version of the policies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy import float32
from numpy.typing import NDArray

from backend.encoder.language import language_of
from backend.heads.weights import stamp
from gateway.screening.hooks import Hook
from gateway.screening.known import KnownTexts
from gateway.screening.threads import FairThreads
from gateway.screening.verdicts import Judgement
from gateway.settings import SettingsError
from guardrails.checks.classifier import Classifier, load_classifier
from guardrails.checks.patterns import LinearRule
from guardrails.checks.topics import Topic
from guardrails.scan.pattern_prefix import UnsupportedPattern
from policies.guardrails import GuardrailProfile, GuardrailsSection

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
        threads: FairThreads | None = None,
    ) -> None:
        """`hooks`: by the names that the profile gives them; `classifier`: other weights than the shipped.

        `threads`: for long texts.
        """
        self.profile = profile
        self.classifier = classifier
        self.hooks = dict(hooks)
        self.threads = threads or FairThreads()
        self.known: KnownTexts[Judgement] = KnownTexts()
        self._embed = embed
        self._topics: dict[str, Topic] | None = None

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


def _check_patterns(name: str, profile: GuardrailProfile) -> None:
    for pattern, rules in profile.patterns.items():
        try:
            if rules.regex is not None:
                LinearRule(rules.regex, lambda: None)
        except UnsupportedPattern as error:
            where = f"guardrails.profiles.{name}.patterns.{pattern}.regex"
            raise SettingsError(f"{where} cannot be used: {error}") from None


class Guards:
    """The guards of one version of the policies, by profile."""

    def __init__(
        self,
        section: GuardrailsSection,
        embed: EmbedTexts = no_vectors,
        api_keys: Mapping[str, str] = MappingProxyType({}),
        *,
        asks_hooks: bool = True,
        threads: FairThreads | None = None,
    ) -> None:
        """`api_keys`: of hooks, by `guardrails.PROFILE.HOOK`; `threads`: for long texts.

        Raises SettingsError for broken patterns, WeightsError for a broken classifier.
        """
        self._by_profile: dict[int, Guard] = {}
        path = None if section.classifier is None else Path(section.classifier)
        classifier = None if path is None else load_classifier(path, stamp(path))
        threads = threads or FairThreads()
        self.moderation = Guard(GuardrailProfile(), embed, {}, classifier, threads)
        self.names = {id(profile): name for name, profile in section.profiles.items()}
        self.hooks: list[Hook] = []
        for name, profile in section.profiles.items():
            _check_patterns(name, profile)
            hooks = {
                hook: Hook(rules, api_keys.get(f"guardrails.{name}.{hook}", ""))
                for hook, rules in profile.hooks.items()
                if asks_hooks
            }
            self.hooks += hooks.values()
            self._by_profile[id(profile)] = Guard(profile, embed, hooks, classifier, threads)

    async def start(self) -> None:
        """Load what would make the first request wait."""
        if any(guard.profile.needs_language for guard in self._by_profile.values()):
            await asyncio.to_thread(language_of, "")

    async def close(self) -> None:
        """Nothing is open."""

    def name_of(self, profile: GuardrailProfile) -> str:
        """Its name in the policies."""
        return self.names[id(profile)]

    def of(self, profile: GuardrailProfile) -> Guard:
        """The guard of a profile of these policies."""
        return self._by_profile[id(profile)]
