"""The guards of one version of the policies, with their hooks and threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from backend.classifiers.weights import stamp
from backend.encoder.language import language_of
from gateway.screening.hooks import HttpHook
from gateway.screening.threads import FairThreads
from gateway.settings import SettingsError
from guardrails.checks.check import CHECK_ERRORS, CHECKS, open_check
from guardrails.checks.classifier import load_classifier
from guardrails.checks.patterns import LinearRule
from guardrails.scan.pattern_prefix import UnsupportedPattern
from guardrails.screen.guard import EmbedTexts, Guard, no_vectors
from guardrails.screen.named_check import NamedCheck
from policies.guardrails import GuardrailProfile, GuardrailsSection


def _check_patterns(name: str, profile: GuardrailProfile) -> None:
    for pattern, rules in profile.patterns.items():
        try:
            if rules.regex is not None:
                LinearRule(rules.regex, lambda: None)
        except UnsupportedPattern as error:
            where = f"guardrails.profiles.{name}.patterns.{pattern}.regex"
            raise SettingsError(f"{where} cannot be used: {error}") from None


@cache
def _threads_of(check: str) -> FairThreads:
    """The threads of a package's check: one that hangs holds up no other. They outlive a reload."""
    return FairThreads()


def _named_checks(name: str, profile: GuardrailProfile, threads: FairThreads) -> dict[str, NamedCheck]:
    found = {}
    for own, rules in profile.checks.items():
        try:
            pool = threads if rules.check in CHECKS else _threads_of(rules.check)
            found[own] = NamedCheck(own, rules, open_check(rules), pool)
        except CHECK_ERRORS as error:
            raise SettingsError(f"guardrails.profiles.{name}.checks.{own}: {error}") from None
    return found


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

        Raises SettingsError for broken patterns and checks, WeightsError for a broken classifier.
        """
        self._by_name: dict[str, Guard] = {}
        path = None if section.classifier is None else Path(section.classifier)
        classifier = None if path is None else load_classifier(path, stamp(path))
        threads = threads or FairThreads()
        self.moderation = Guard(GuardrailProfile(), embed, {}, classifier, threads=threads)
        self.hooks: list[HttpHook] = []
        for name, profile in section.profiles.items():
            _check_patterns(name, profile)
            hooks = {
                hook: HttpHook(rules, api_keys.get(f"guardrails.{name}.{hook}", ""))
                for hook, rules in profile.hooks.items()
                if asks_hooks
            }
            self.hooks += hooks.values()
            self._by_name[name] = Guard(
                profile,
                embed,
                hooks,
                classifier,
                threads=threads,
                checks=_named_checks(name, profile, threads),
            )

    @property
    def is_empty(self) -> bool:
        """Whether there are no profiles."""
        return not self._by_name

    async def start(self) -> None:
        """Load what would make the first request wait."""
        if any(guard.profile.needs_language for guard in self._by_name.values()):
            await asyncio.to_thread(language_of, "")

    async def close(self) -> None:
        """Nothing is open."""

    def of(self, profile: str) -> Guard:
        """The guard of a profile of these policies, by its name."""
        return self._by_name[profile]
