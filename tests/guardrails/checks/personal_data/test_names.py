from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from guardrails.checks.personal_data import names
from guardrails.checks.personal_data.names import (
    DILATIONS,
    MAX_SENTENCE_CHARS,
    WEIGHTS,
    NameFinder,
    NameModel,
    finder_of,
    sentences,
)
from guardrails.checks.personal_data.patterns import KINDS, PatternFinder
from guardrails.checks.personal_data.words import words_of
from guardrails.masking import Masking
from tests.guardrails.scan.test_scanner import CUTS, PIECES, SEPARATORS, fed

ALL = (*KINDS, *names.KINDS)
NAMES = [
    "My name is Maria Gonzalez. ", "Dr. Smith", "I live in Berlin", "12 Oak Street, Springfield 62704",
    "born on", "12 March 1985", "1985-03-12", "Acme Ltd.", " said ", "Hello! ", "what? ", "\n", "… ", "J. ",
    "lower case words ", "Tie::Smith(", "self.Miller", "README.md ", "x" * 597 + "Bob",
    "x" * 700, "你好。", "From: ", "e.g. ",
]  # fmt: skip
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(NAMES), st.sampled_from(PIECES), st.sampled_from(SEPARATORS), st.text(max_size=6)
    ),
    max_size=10,
).map("".join)


def found(text: str, *kinds: str) -> list[tuple[str, str]]:
    return [
        (span.kind, text[span.start : span.end])
        for span in NameFinder(PatternFinder(KINDS), kinds or ALL).spans(text)
    ]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("Hello, my name is Maria Gonzalez and I need help.", "person", "Maria Gonzalez"),
        ("please call peter miller tomorrow", "person", "peter miller"),
        ("We flew from Lisbon to Oslo.", "location", "Lisbon"),
        ("Deliver it to 12 Oak Street, Springfield", "address", "12 Oak Street"),
        ("She joined Siemens as an engineer.", "organization", "Siemens"),
        ("Date of birth: 12/03/1985", "date_of_birth", "12/03/1985"),
        ("I was born on the 3rd of May, 1990 in a town", "date_of_birth", "3rd of May, 1990"),
        ("My e-mail is bob@example.com.", "email", "bob@example.com"),
    ],
)
def test_what_is_found(text: str, kind: str, value: str) -> None:
    assert any(value in each and own == kind for own, each in found(text))


@pytest.mark.parametrize(
    "text",
    [
        "Write a function that returns the longest word of a list.",
        "How do I boil an egg?",
        "2023-04-06 INFO worker.pool Started TaskRunner in 35 ms",
        "The meeting is on 12 March 1985.",
        "Rename OrderService to OrderManager in every file.",
        "require Carp::Heavy; use Archive::Tar::File;",
        "The NullPointerException comes from CustomerDao.findAll(Smith).",
        "README.md and setup.py are out of date.",
        "Install Django with pip and run it behind Nginx.",
        "Why does Kafka drop messages when Zookeeper restarts?",
        "Set Content-Type and Accept-Language headers.",
        "P/N 36CEX13771-35, 95.63916° N, 63.61191° W",
        "артикул 3326874, заказ № 87889695",
        "if (user == null) throw new IllegalStateException();",
        "",
    ],
)
def test_what_is_not(text: str) -> None:
    assert found(text) == []


def test_only_the_kinds_that_are_asked_for() -> None:
    text = "My name is Maria Gonzalez, I live in Berlin, bob@example.com"
    assert {kind for kind, _ in found(text, "location")} == {"location", "email"}
    assert isinstance(finder_of(KINDS), PatternFinder) and isinstance(finder_of(["person"]), NameFinder)


def test_sentences_do_not_end_inside_a_match_or_a_title() -> None:
    text = "Dr. J. Smith came. He left\nat last! -----BEGIN"
    assert [text[start:end] for start, end, _ in sentences(text, 0, [])] == [
        "Dr. J. Smith came. ", "He left\n", "at last! ", "-----BEGIN",
    ]  # fmt: skip
    key = "-----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgkq\n-----END PRIVATE KEY-----\nEnd. "
    fixed = list(PatternFinder(KINDS).spans(key))
    assert [key[start:end] for start, end, _ in sentences(key, 0, fixed)] == [key[:-5], "End. "]
    assert [end - start for start, end, _ in sentences("x" * 1500, 0, [])] == [MAX_SENTENCE_CHARS] * 2 + [300]


def masked(text: str, cuts: list[int]) -> str:
    return fed(Masking(ALL, "redact").restorer(screens_answers=True), text, cuts)


@settings(max_examples=150, deadline=None)
@given(TEXTS, CUTS)
@example("Dr. J. Smith -----BEGIN PRIVATE KEY-----\nMIIBVgIBADANBgkq\nBob. Bob", [])
def test_cuts_change_nothing(text: str, cuts: list[int]) -> None:
    assert masked(text, cuts) == masked(text, [])


def test_single_characters_change_nothing() -> None:
    draw = random.Random(1)
    for _ in range(25):
        text = "".join(draw.choices(NAMES + PIECES, k=6))
        assert masked(text, list(range(len(text)))) == masked(text, [])


def test_the_test_notices_a_finder_that_does_not_wait_for_the_end_of_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        NameFinder, "open_from", lambda self, text, start: self._patterns.open_from(text, start)
    )
    with pytest.raises(AssertionError):
        test_single_characters_change_nothing()


def test_a_sentence_is_sent_when_it_ends() -> None:
    scanner = Masking(ALL, "mask").restorer(screens_answers=True)
    assert scanner.feed("The sky is blue. The") == "The sky is blue. "
    assert scanner.feed(" sea is, too.\nAnd") == "The sea is, too.\n"
    assert scanner.finish() == "And"


def test_names_come_back() -> None:
    masking = Masking(ALL, "mask")
    text = "My name is Maria Gonzalez. Maria Gonzalez lives in Berlin."
    sent = masking.mask(text)
    assert "Gonzalez" not in sent and sent.count("[PERSON_1]") == 2
    assert masking.restorer(screens_answers=False).finish(sent) == text


def test_the_layers_are_convolutions_over_the_whole_sentence() -> None:
    """The distance that a word is seen from is the sum of the dilations."""
    model = NameModel.load()
    words = words_of("one two three four five six seven eight nine ten eleven", 0, 55)
    changed = [words[0]._replace(form="Eleven"), *words[1:]]
    is_same = np.isclose(model.scores(words), model.scores(changed), atol=1e-6).all(1)
    assert (not is_same[0] and is_same[sum(DILATIONS) + 1 :].all()) or not is_same.all()
    assert WEIGHTS.stat().st_size <= 3e6
