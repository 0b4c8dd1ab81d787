"""What the documents cover supports a sentence; other numbers, names and negations do not."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.checks.groundedness import FEATURES, Documents, needs_check

TEXT = (
    "The contract was signed by Anna Weber in Lisbon on 12 March. It runs for three years and costs "
    "4,500 euros a month. The supplier does not deliver on Sundays."
)
DOCUMENTS = Documents([TEXT])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("The contract runs for 3 years.", "The contract runs for five years."),
        ("It costs 4500 euros a month.", "It costs 5,400 euros a month."),
        ("The contract was signed by Anna Weber.", "The contract was signed by Peter Weber."),
        ("Anna Weber signed the contract in Lisbon.", "Anna Weber signed the contract in Madrid."),
        ("The supplier does not deliver on Sundays.", "The supplier does deliver on Sundays."),
        ("The supplier never delivers on Sundays.", "The bakery opens early every weekday morning."),
    ],
)
def test_the_right_sentence_has_more_support(right: str, wrong: str) -> None:
    assert DOCUMENTS.support(right) > DOCUMENTS.support(wrong) + 0.02


def test_no_documents_support_nothing_much() -> None:
    assert not Documents([]) and not Documents(["", " "]) and DOCUMENTS
    assert Documents([]).support("The contract runs for three years.") < 0.5


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("The contract costs 4,500 euros.", True),
        ("Sure, here is the answer to your question about it.", False),
        ("Would you like to know when the contract ends?", False),
        ("It is.", False),
        ("", False),
    ],
)
def test_only_statements_need_a_check(sentence: str, expected: bool) -> None:
    assert needs_check(sentence) is expected


@given(st.text(max_size=200), st.text(max_size=80))
def test_any_text_has_a_probability(document: str, sentence: str) -> None:
    documents = Documents([document])
    assert 0 <= documents.support(sentence) <= 1 and documents.features(sentence).shape == (len(FEATURES),)


def test_a_word_in_every_sentence_costs_no_more_than_a_rare_one() -> None:
    documents = Documents(["word " * 40_000])
    costs_s = []
    for _ in range(3):
        began_s = time.thread_time()
        for _ in range(20):
            documents.support("word Zebra apple word Berlin stone word " * 8)
        costs_s.append(time.thread_time() - began_s)
    assert min(costs_s) < 0.8  # a quarter of a second on an idle machine
