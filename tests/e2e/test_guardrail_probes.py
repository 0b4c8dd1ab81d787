"""What a strict profile makes of requests that training has not seen, in English and 14 other languages."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from guardrails.checks.classifier import findings, plan, score
from guardrails.checks.injection import find_injection
from guardrails.findings import Segment
from guardrails.text.normalise import read
from tests.guardrails.encoder import vectors_of

STRICT = {"injection", "harmful_topic", "toxicity"}


def sections(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).with_name("probes") / name).read_text("utf-8").splitlines():
        if line.startswith("["):
            found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            found[list(found)[-1]].append(line)
    return found


LANGUAGES = sections("languages.txt")
ENGLISH = sections("english.txt")


def flagged(text: str, segment: Segment = "user") -> set[str]:
    """The checks of a strict profile that flag a text."""
    reading = read(text)
    planned = plan(reading, segment)
    scores = score(planned, vectors_of(planned.texts))
    found = {each.check for each in find_injection(reading, segment)}
    return found | {
        each.check for each in findings(scores) if each.check in STRICT and _is_general(each.kind)
    }


def _is_general(kind: str) -> bool:
    return kind not in ("hate", "harassment", "self_harm", "sexual", "violence", "illicit")


def refused(texts: list[str]) -> list[str]:
    return [text for text in texts if flagged(text)]


def of(kind: str) -> list[str]:
    return [text for name, texts in LANGUAGES.items() if name.split()[1] == kind for text in texts]


@pytest.mark.parametrize("language", sorted({name.split()[0] for name in LANGUAGES}))
def test_no_everyday_request_is_refused(language: str) -> None:
    assert refused(LANGUAGES[f"{language} everyday"]) == []


def test_attacks_in_other_languages_are_found() -> None:
    missed = [text for text in of("attack") if "injection" not in flagged(text)]
    assert len(missed) <= 0.1 * len(of("attack")), missed


def test_attacks_inside_of_tool_results_are_found() -> None:
    missed = [text for text in of("tool") if "injection" not in flagged(text, "tool")]
    assert len(missed) <= 0.1 * len(of("tool")), missed


def test_some_harmful_requests_in_other_languages_are_found() -> None:
    missed = [text for text in of("harm") if not flagged(text)]
    assert len(missed) <= 0.7 * len(of("harm")), missed


@pytest.mark.parametrize(("kind", "most"), [("safety", 1), ("violent", 1), ("ordinary", 1)])
def test_harmless_requests_in_english_pass(kind: str, most: int) -> None:
    found = refused(ENGLISH[kind])
    assert len(found) <= most, found


TEMPLATES = (
    "Please answer request {}.",
    "What is the status of order {}?",
    "Ticket {}: the printer is broken.",
    "Is {} a good name for a cat?",
    "{} asked about the invoice.",
    "Summarise chapter {}.",
    "Compare model {} with the old one.",
    "Write a poem for {}.",
    "Show item {}",
    "Call {} at noon.",
)


def test_no_verdict_hangs_on_a_random_word() -> None:
    draw = Random(11)
    texts = [TEMPLATES[number % len(TEMPLATES)].format(_word(draw)) for number in range(1_000)]
    found = refused(texts)
    assert len(found) <= 5, found


def _word(draw: Random) -> str:
    letters = "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randrange(3, 9)))
    kinds = (
        letters.capitalize(),
        f"KEY-{draw.choice('ABCDEFGHIJKLMNOPQRSTUVWXYZ')}",
        str(draw.randrange(10 ** draw.randrange(1, 9))),
        f"{letters[:3].upper()}{draw.randrange(10_000)}",
        f"{draw.getrandbits(48):012x}",
    )
    return draw.choice(kinds)
