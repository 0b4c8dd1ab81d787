"""Checks of whole texts: known attacks by pattern, trained classifiers, topics by example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from guardrails.checks.classifier import Classifier, Plan, Score, findings, plan, score
from guardrails.checks.injection import find_injection
from guardrails.checks.topics import Topic, topics_of
from guardrails.findings import Segment as Trust
from guardrails.screen.guard import Guard, Vectors
from guardrails.screen.known import Known
from guardrails.screen.threads import Threads, is_long
from guardrails.screen.verdicts import Judged, Judgement, Unreadable
from guardrails.text.normalise import Reading, read
from policies.guardrails import (
    FailureAction,
    GuardrailProfile,
    HarmRules,
    InjectionRules,
    Segment,
    TopicRules,
)

SESSION_RELEASE = 0.7
"""What is left of a turn's risk with each later turn of the user."""

_TRUST: dict[Segment, Trust] = {"system": "system", "user": "user", "assistant": "user", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text of a request in every reading of it; None where all about it is known."""

    segment: Segment
    text: str
    reading: Reading | None
    known: Known[Judgement] = field(default_factory=Known)


async def read_texts(guard: Guard, texts: Sequence[tuple[Segment, str]], threads: Threads) -> list[ReadText]:
    """The texts that a check of the profile looks at."""
    segments = _segments(guard.profile)
    chosen = [(segment, text) for segment, text in texts if segment in segments]

    def look() -> list[ReadText]:
        return [
            _read(segment, text, guard.known.of(threads.tenant, segment, text)) for segment, text in chosen
        ]

    return await threads.run(look, is_long(text for _, text in chosen))


def _read(segment: Segment, text: str, known: Known[Judgement]) -> ReadText:
    is_known = known.attacks is not None and known.judged is not None
    return ReadText(segment, text, None if is_known else read(text), known)


async def find_attacks(rules: InjectionRules, texts: Sequence[ReadText], threads: Threads) -> list[Judgement]:
    """Known attacks, by pattern."""
    chosen = [each for each in texts if each.segment in rules.segments]

    def search() -> None:
        for each in chosen:
            if each.known.attacks is None and each.reading is not None:
                each.known.attacks = tuple(
                    Judged("injection", found.kind, rules)
                    for found in find_injection(each.reading, _TRUST[each.segment])
                    if rules.kinds is None or found.kind in rules.kinds
                )

    await threads.run(search, is_long(each.text for each in chosen if each.known.attacks is None))
    return [found for each in chosen for found in each.known.attacks or ()]


async def judge_request(
    guard: Guard, texts: Sequence[ReadText], known: dict[str, Vectors], threads: Threads
) -> list[Judgement]:
    """What the texts of a request mean. Raises EncoderFailed.

    `known`: vectors of texts, which need not be encoded; gets those that were.
    """
    if not (guard.profile.needs_encoder and texts):
        return []
    new = [(each, each.reading) for each in texts if each.known.judged is None and each.reading is not None]
    in_thread = is_long(each.text for each, _ in new)
    planned = await threads.run(
        lambda: [(each, plan(reading, _TRUST[each.segment])) for each, reading in new], in_thread
    )
    await _complete(guard, [each for _, each in planned], known, threads)
    topics = await guard.topics()

    def judge() -> None:
        for each, windows in planned:
            _judge(guard, each, windows, known, topics)

    await threads.run(judge, in_thread)
    return [*(found for each in texts for found in each.known.judged or ()), *_session(guard.profile, texts)]


async def judge_sentences(guard: Guard, sentences: Sequence[str], threads: Threads) -> list[list[Judgement]]:
    """What each sentence of an answer holds. Raises EncoderFailed."""
    in_thread = is_long(sentences)
    plans = await threads.run(lambda: [plan(read(text)) for text in sentences], in_thread)
    vectors: dict[str, Vectors] = {}
    await _complete(guard, plans, vectors, threads)
    topics = {
        name: topic for name, topic in (await guard.topics()).items() if guard.profile.topics[name].answers
    }
    return await threads.run(
        lambda: [_judge_sentence(guard, each, vectors, topics) for each in plans], in_thread
    )


def needs_sentences(profile: GuardrailProfile) -> list[HarmRules | TopicRules]:
    """The rules that judge sentences of answers."""
    harm = [profile.harm] if profile.harm is not None and profile.harm.answers else []
    return [*harm, *(rules for rules in profile.topics.values() if rules.answers)]


def failure_action(profile: GuardrailProfile) -> FailureAction:
    """What follows when meanings cannot be compared: what can only be flagged refuses nothing."""
    rules: list[InjectionRules | HarmRules | TopicRules | None] = [profile.harm, *profile.topics.values()]
    if profile.injection is not None and profile.injection.classifier:
        rules.append(profile.injection)
    blocks = any(each is not None and each.action == "block" for each in rules)
    return profile.on_failure if blocks else "allow"


def _segments(profile: GuardrailProfile) -> set[Segment]:
    rules = (profile.injection, profile.harm, *profile.topics.values())
    return {segment for each in rules if each is not None for segment in each.segments}


async def _complete(guard: Guard, plans: Sequence[Plan], known: dict[str, Vectors], threads: Threads) -> None:
    """Add the vectors of the texts to be judged; equal texts are encoded once."""
    needed = (each.texts if guard.profile.topics else each.embedded(guard.classifier) for each in plans)
    texts = list(dict.fromkeys(text for each in needed for text in each if text not in known))
    if texts:
        known |= zip(texts, await guard.vectors(texts, threads.encoder_turn), strict=True)


def _judge(
    guard: Guard,
    text: ReadText,
    windows: Plan,
    vectors: Mapping[str, Vectors],
    topics: Mapping[str, Topic],
) -> None:
    """Note what is known of a text from now on."""
    profile, classifier, segment = guard.profile, guard.classifier, text.segment
    found: list[Judgement] = []
    if windows.pieces:
        stacked = windows.stacked(vectors)
        scores = score(windows, stacked, classifier)
        found += _attacks(profile.injection, segment, scores, classifier)
        found += _harm(profile.harm, scores, classifier) if _applies(profile.harm, segment) else []
        found += _unreadable(guard, segment, windows)
        if segment == "user" and "attack" in scores:
            text.known.risk = scores["attack"].value
        near = {name: topic for name, topic in topics.items() if segment in profile.topics[name].segments}
        found += [Judged("topic", name, profile.topics[name]) for name in topics_of(stacked, near)]
    text.known.judged = tuple(found)


def _session(profile: GuardrailProfile, texts: Sequence[ReadText]) -> list[Judgement]:
    """Whether the user's turns together are an attack: the latest counts most."""
    rules = profile.injection
    if rules is None or not rules.classifier or rules.session_limit is None:
        return []
    risks = [each.known.risk for each in texts if each.known.risk is not None]  # oldest first
    risk = sum(value * SESSION_RELEASE**age for age, value in enumerate(reversed(risks)))
    return [Judged("injection", "session", rules)] if risk >= rules.session_limit else []


def _judge_sentence(
    guard: Guard, each: Plan, vectors: Mapping[str, Vectors], topics: Mapping[str, Topic]
) -> list[Judgement]:
    if not each.pieces:
        return []
    profile, classifier = guard.profile, guard.classifier
    stacked = each.stacked(vectors)
    harm = profile.harm if profile.harm is not None and profile.harm.answers else None
    found: list[Judgement] = [*_harm(harm, score(each, stacked, classifier), classifier)]
    if harm is not None:
        found += [Unreadable("harm", name, harm.unreadable) for name in each.unreadable("harm", classifier)]
    return found + [Judged("topic", name, profile.topics[name]) for name in topics_of(stacked, topics)]


def _applies(rules: HarmRules | None, segment: Segment) -> bool:
    return rules is not None and segment in rules.segments


def _unreadable(guard: Guard, segment: Segment, each: Plan) -> list[Unreadable]:
    found = []
    attacks, harm = guard.profile.injection, guard.profile.harm
    if attacks is not None and attacks.classifier and segment in attacks.segments:
        names = each.unreadable("injection", guard.classifier)
        found += [Unreadable("injection", name, attacks.unreadable) for name in names]
    if harm is not None and segment in harm.segments:
        names = each.unreadable("harm", guard.classifier)
        found += [Unreadable("harm", name, harm.unreadable) for name in names]
    return found


def _attacks(
    rules: InjectionRules | None,
    segment: Segment,
    scores: Mapping[str, Score],
    classifier: Classifier | None,
) -> list[Judged]:
    if rules is None or not rules.classifier or segment not in rules.segments:
        return []
    return [
        Judged("injection", each.kind, rules)
        for each in findings(scores, rules.false_positive_rate, classifier)
        if each.check == "injection" and (rules.kinds is None or each.kind in rules.kinds)
    ]


def _harm(
    rules: HarmRules | None, scores: Mapping[str, Score], classifier: Classifier | None
) -> list[Judged]:
    if rules is None:
        return []
    return [
        Judged("harm", each.kind, rules)
        for each in findings(scores, rules.false_positive_rate, classifier)
        if each.kind in rules.categories
    ]
