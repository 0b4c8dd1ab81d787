"""`penstock guardrails try`: what each check of a profile finds in one text, and what decided."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TextIO

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from backend.encoder.checkpoint import BUILTIN
from gateway.encoder_fit import EncoderFit
from gateway.extras import require
from gateway.screening.guards import Guards
from gateway.settings import SettingsError
from guardrails.checks.classifier import CATEGORIES, KINDS, Check, Plan, Score, least_score, plan, score
from guardrails.checks.injection import find_injection
from guardrails.checks.patterns import LinearRule, words_rule
from guardrails.checks.personal_data.patterns import KINDS as PERSONAL_DATA
from guardrails.checks.topics import Topic
from guardrails.deciding import deciding_words
from guardrails.masking import Masking
from guardrails.scan.scanner import scan
from guardrails.screen.hooks import HookFailed
from guardrails.screen.named_check import NamedCheck
from guardrails.text.normalise import read
from policies.document import Policies
from policies.guardrails import (
    CheckRules,
    GuardrailProfile,
    GuardrailsSection,
    HarmRules,
    InjectionRules,
    PatternRules,
    TopicRules,
)
from policies.load import load_policies

if TYPE_CHECKING:
    from backend.encoder.model import SentenceEncoder

Speaker = Literal["user", "system", "tool"]
Rules = InjectionRules | HarmRules | PatternRules | TopicRules | CheckRules

STRICT: Final = GuardrailsSection(
    profiles={"strict": GuardrailProfile(injection=InjectionRules(), harm=HarmRules())}, default="strict"
)
"""Without policies: both classifiers, with their defaults."""
BATCH = 16
_CHECKS: tuple[Check, ...] = ("injection", "harm")


def try_guardrails(options: argparse.Namespace, out: TextIO) -> int:
    """Print a line for each check. Raises SettingsError, PolicyError, WeightsError, CheckpointError."""
    policies, name = _profile(options.policies, options.profile)
    profile, text = policies.guardrails.profiles[name], _text(options.text)
    guard = Guards(GuardrailsSection(profiles={name: profile}), asks_hooks=False).of(name)
    if profile.needs_encoder:
        require("this command", ["semantic"])
    compares = bool(profile.topics) and EncoderFit(policies).is_builtin
    for line in report(text, profile, guard.checks, options.segment, compares_topics=compares):
        out.write(f"{line}\n")
    return 0


def report(
    text: str,
    whole: GuardrailProfile,
    checks: Mapping[str, NamedCheck],
    segment: Speaker,
    *,
    compares_topics: bool,
) -> Iterator[str]:
    """What each check of the profile says about a text, in the gateway's order.

    `compares_topics`: the examples are for the embedded encoder.
    """
    profile = _looking(whole, segment)
    changed, changes = _changes(text, profile)
    planned = plan(read(changed), segment)
    languages = sorted({piece.language for piece in planned.pieces})
    yield f"text: {len(text)} characters, read as {', '.join(languages) or 'no language'}"
    if profile.dry_run:
        yield "dry_run: this profile changes and refuses nothing"
    yield from changes
    yield from _attacks(changed, profile, segment)
    yield from _meanings(planned, profile, compares_topics=compares_topics)
    for name in profile.checks:
        yield f"check  {name}: {_checked(checks[name], segment, changed)}"
    yield from _passed_over(whole, segment)
    if untried := _untried(profile, compares_topics=compares_topics):
        yield f"not tried here: {', '.join(untried)}"


def _changes(text: str, profile: GuardrailProfile) -> tuple[str, list[str]]:
    """The text that the later checks get, and what was found on the way."""
    lines = []
    for name, rules in profile.patterns.items():
        replaced, num_found = _replaced(name, rules, text)
        lines.append(f"pattern  {name}: {num_found or 'nothing'} found, action {rules.action}")
        text = replaced if rules.action == "redact" and not profile.dry_run else text
    if (data := profile.personal_data) is not None:
        is_kept = data.action == "block" or profile.dry_run
        kinds = PERSONAL_DATA if data.kinds is None else tuple(data.kinds)
        masking = Masking(kinds, "flag" if is_kept else data.action)
        text = masking.mask(text)
        lines += [f"personal_data  {kind}: {count} found" for kind, count in sorted(masking.found.items())]
    return text, lines


def _replaced(name: str, rules: PatternRules, text: str) -> tuple[str, int]:
    """The text without what a pattern finds, and how often that is."""
    found: list[str] = []

    def replacement() -> str:
        found.append(f"[{name.upper()}]")
        return found[-1]

    if rules.words is not None:
        return scan(words_rule(rules.words, replacement), text), len(found)
    return scan(LinearRule(rules.regex or "", replacement), text), len(found)


def _attacks(text: str, profile: GuardrailProfile, segment: Speaker) -> Iterator[str]:
    if (rules := profile.injection) is not None:
        for found in find_injection(read(text), segment):
            if rules.kinds is not None and found.kind not in rules.kinds:
                continue
            place = text[found.start : found.end]
            yield f"injection  {found.kind}: flagged by a {found.reason}: {place[:80]!r}"


def _meanings(planned: Plan, profile: GuardrailProfile, *, compares_topics: bool) -> Iterator[str]:
    """What classifiers and topics say, which compare sentence vectors."""
    for check in _CHECKS:
        rules = getattr(profile, check)
        if rules is not None and getattr(rules, "classifier", True):
            yield from (f"{check}  unreadable: {name}" for name in planned.unreadable(check))
    topics = profile.topics if compares_topics else {}
    if not planned.pieces or not (profile.needs_language or topics):
        return
    vectors = embed(planned.texts)
    attacks = profile.injection
    if profile.needs_language:
        scores = score(planned, vectors)
        for name, head, rate in _heads(profile, scores):
            limit = least_score(head, scores[head].language, rate)
            yield _line(name, head, scores, limit, None if attacks is None else attacks.kinds)
    for name, topic in topics.items():
        found = Topic(embed(topic.examples), topic.min_similarity).similarity(vectors)
        verdict = "flagged" if found >= topic.min_similarity else "passes"
        yield (
            f"topic  {name}: {found:.3f}, threshold {topic.min_similarity:.3f}, {verdict}, "
            f"action {topic.action}"
        )


def _checked(check: NamedCheck, segment: Speaker, text: str) -> str:
    """What a named check finds first, within its time."""
    rules = check.rules
    try:
        verdict = asyncio.run(check.check([(segment, text)], ""))
    except HookFailed as failed:
        return f"failed: {failed}; on_failure {rules.on_failure}"
    found = (verdict.reason or "something") if verdict.flagged else "nothing"
    return f"{found} found, action {rules.action}"


def _looking(profile: GuardrailProfile, segment: Speaker) -> GuardrailProfile:
    """The profile without the rules that pass over such a text."""
    attacks, harm = profile.injection, profile.harm
    return replace(
        profile,
        injection=None if attacks is None or _why_not(attacks, segment) else attacks,
        harm=None if harm is None or _why_not(harm, segment) else harm,
        patterns={name: each for name, each in profile.patterns.items() if not _why_not(each, segment)},
        topics={name: each for name, each in profile.topics.items() if not _why_not(each, segment)},
        checks={name: each for name, each in profile.checks.items() if not _why_not(each, segment)},
    )


def _passed_over(profile: GuardrailProfile, segment: Speaker) -> Iterator[str]:
    """A line for each of those rules."""
    found: list[tuple[str, Rules | None]] = [("injection  ", profile.injection), ("harm  ", profile.harm)]
    found += [(f"pattern  {name}: ", rules) for name, rules in profile.patterns.items()]
    found += [(f"topic  {name}: ", rules) for name, rules in profile.topics.items()]
    found += [(f"check  {name}: ", rules) for name, rules in profile.checks.items()]
    for label, rules in found:
        if rules is not None and (why := _why_not(rules, segment)):
            yield f"{label}{why}"


def _why_not(rules: Rules, segment: Speaker) -> str:
    """Why rules pass over a request's text by a speaker; "" where they do not."""
    if not getattr(rules, "requests", True):
        return "passed over, as it looks at answers only"
    if segment in rules.segments:
        return ""
    return f"passed over, as its segments are {', '.join(rules.segments)}, not {segment}"


def _untried(profile: GuardrailProfile, *, compares_topics: bool) -> list[str]:
    """What needs more than one text, or the network, or another encoder."""
    found = [f"hooks.{name}" for name in profile.hooks]
    if profile.groundedness is not None:
        found.append("groundedness")
    if profile.injection is not None and profile.injection.session_limit is not None:
        found.append("injection.session_limit")
    if profile.topics and not compares_topics:
        found.append("topics (their encoder is another than the one that ships)")
    return found


def _heads(profile: GuardrailProfile, scores: dict[str, Score]) -> Iterator[tuple[str, str, float]]:
    """Check, head and rate of the heads that decide under a profile."""
    if (attacks := profile.injection) is not None and attacks.classifier:
        for head in ("attack", "indirect"):
            if head in scores:
                yield "injection", head, attacks.false_positive_rate
    if (harm := profile.harm) is not None:
        for head in ("harmful_topic", "toxicity", *CATEGORIES):
            if head in harm.categories:
                yield "harm", head, harm.false_positive_rate


def _line(check: str, head: str, scores: dict[str, Score], limit: float, kinds: Sequence[str] | None) -> str:
    """`kinds`: of attacks that the profile asks for, if not all."""
    found = scores[head]
    name = max(KINDS, key=lambda kind: scores[kind].value) if head == "attack" else head
    verdict = "flagged" if found.value >= limit else "passes"
    if check == "injection" and kinds is not None and name not in kinds:
        verdict = "passes, as it is none of the profile's kinds"
    line = f"{check}  {name}: {found.value:.3f}, threshold {limit:.3f}, {verdict}, {found.language}"
    words = ", ".join(deciding_words(head, found, embed))
    return f"{line}; words: {words}" if words else line


def _profile(folder: Path | None, name: str | None) -> tuple[Policies, str]:
    """Policies, and the name of one of their profiles."""
    if folder is None:
        if name is not None:
            raise SettingsError(f"--profile {name!r} needs the policy folder DIR that defines it")
        return Policies(guardrails=STRICT), "strict"
    policies = load_policies(folder)
    section = policies.guardrails
    if section.classifier is not None:
        raise SettingsError(
            "guardrails.classifier names weights of one's own encoder, and `try` reads the shipped ones: "
            "measure with `penstock eval guardrails --weights FILE --encoder FOLDER`"
        )
    chosen = name or section.default
    if chosen is None or chosen not in section.profiles:
        known = ", ".join(section.profiles) or "none"
        what = f"{chosen!r} is no profile" if chosen else "NAME is needed: no profile is the default"
        raise SettingsError(f"--profile {what} of {str(folder)!r}; there are: {known}")
    return policies, chosen


def _text(given: str) -> str:
    try:
        is_file = Path(given).is_file()
    except (OSError, ValueError):  # too long or with a NUL: no path
        is_file = False
    try:
        return Path(given).read_text("utf-8") if is_file else given
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{given!r} cannot be read as UTF-8 text: {error}") from None


@cache
def _encoder() -> SentenceEncoder:
    from backend.encoder.model import SentenceEncoder  # its runtime is in the extra `semantic`

    return SentenceEncoder.from_checkpoint(BUILTIN, 1, is_int8=True)


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """The vectors of some texts, by the embedded encoder."""
    encoder = _encoder()
    parts = [
        encoder.embed(encoder.tokenize(list(texts[start : start + BATCH])))
        for start in range(0, len(texts), BATCH)
    ]
    return np.concatenate(parts)
