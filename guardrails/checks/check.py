"""Checks that a policy names: the built-in ones here, others from installed packages (`penstock.checks`).

A check is a pure function of a text. What follows from its findings is the policy's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from guardrails.checks.injection import find_injection
from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from guardrails.findings import Finding, Segment
from guardrails.text.normalise import read
from policies.guardrails import AttackKind, CheckRules, PatternKind
from policies.plugins import PluginError, load

GROUP: Final = "penstock.checks"
CHECK_ERRORS = (PluginError, msgspec.ValidationError)
"""What opening a check may raise: a broken package, and options that are not the check's."""

Find = Callable[[str, Segment], Iterable[Finding]]
"""The findings in a text, from who wrote it. It may raise anything."""


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a check without any."""


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """What the house knows of a check."""

    find: Callable[[str, Segment, Any], Iterable[Finding]]
    """The findings in a text, from who wrote it, with the policy's options. It may raise anything.

    It runs in one of a few threads of its own, and Python cannot stop it: where it can take long, it calls
    `guardrails.cancellation.check_cancelled` between the pieces of a text.
    """
    options: type[msgspec.Struct] = NoOptions  # forbid unknown fields, so that a slip is found

    def bound(self, options: Mapping[str, Any]) -> Find:
        """The check with a policy's options. Raises msgspec.ValidationError."""
        converted = msgspec.convert(dict(options), self.options)
        return lambda text, segment: self.find(text, segment, converted)


def open_check(rules: CheckRules) -> Find:
    """The check that a policy names, with its options.

    Raises CHECK_ERRORS.
    """
    return spec_of(rules.check).bound(rules.options)


def spec_of(name: str) -> CheckSpec:
    """A built-in check, or what a package adds. Raises PluginError."""
    return CHECKS.get(name) or load(GROUP, name, CheckSpec)


class KnownAttacksOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `known_attacks`."""

    kinds: list[AttackKind] | None = None


class PersonalDataOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `personal_data`."""

    kinds: list[PatternKind] | None = None


def _find_attacks(text: str, segment: Segment, options: KnownAttacksOptions) -> Iterator[Finding]:
    for found in find_injection(read(text), segment):
        if options.kinds is None or found.kind in options.kinds:
            yield found


def _find_personal_data(text: str, segment: Segment, options: PersonalDataOptions) -> Iterator[Finding]:
    for span in PatternFinder(KINDS if options.kinds is None else options.kinds).spans(text):
        yield Finding("personal_data", span.kind, 1.0, span.start, span.end, "pattern")


KNOWN_ATTACKS = CheckSpec(_find_attacks, KnownAttacksOptions)
PERSONAL_DATA = CheckSpec(_find_personal_data, PersonalDataOptions)
CHECKS: Mapping[str, CheckSpec] = {"known_attacks": KNOWN_ATTACKS, "personal_data": PERSONAL_DATA}
