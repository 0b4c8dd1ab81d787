from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.verify.features import NAMES, pair_features
from cache.verify.words import read


def features(a: str, b: str) -> dict[str, float]:
    values = pair_features(read(a), read(b), 0.9, lambda word: 0.5)
    return dict(zip(NAMES, values, strict=True))


@pytest.mark.parametrize(
    ("a", "b", "feature"),
    [
        ("flights from Rome to Oslo", "flights from Oslo to Rome", "swapped_roles"),
        ("Is Go faster than Rust?", "Is Rust faster than Go?", "swapped_roles"),
        ("Do wolves fear bears?", "Do bears fear wolves?", "swapped_roles"),
        ("Anna gave the book to Ben.", "Ben gave the book to Anna.", "swapped_roles"),
        ("trains from New York to Los Angeles", "trains from Los Angeles to New York", "swapped_roles"),
        ("Who won in 1998?", "Who won in 2002?", "numbers_differ"),
        ("open until May 5", "open until March 5", "number_missing"),
        ("open until April 5", "open until March 5", "numbers_differ"),
        ("top films", "top 10 films", "number_missing"),
        ("Is it safe?", "Is it not safe?", "negation_differs"),
        ("the largest lake", "the smallest lake", "opposite_words"),
        ("is it usable", "is it unusable", "opposite_words"),
        ("How far is 5 km?", "How far is 5 miles?", "opposite_words"),
        ("Do women like men?", "Do men like men?", "opposite_words"),
        ("5 days of 7 days", "5 weeks of 7 days", "opposite_words"),
        ("Why do cats purr?", "How do cats purr?", "opposite_words"),
        ("their first album", "their album", "opposite_words"),
        ("Ann was born in Rome and moved to Oslo", "Ann was born in Oslo and moved to Rome", "swapped_roles"),
        ("capital of Peru?", "capital of Chile?", "names_differ"),
        ("Who wrote it?", "When did she write it?", "asks_differ"),
        ("open on Sunday", "only open on Sunday", "scope_differs"),
    ],
)
def test_changes_that_reverse_an_answer_are_seen(a: str, b: str, feature: str) -> None:
    assert features(a, b)[feature] > 0
    assert features(a, a)[feature] == 0


@pytest.mark.parametrize(
    ("a", "b", "feature"),
    [
        ("compare Go and Rust", "compare Rust and Go", "swapped_roles"),
        ("Who is better, Ann Lee or Bo Ray?", "Who is better, Bo Ray or Ann Lee?", "swapped_roles"),
        ("about 2k people", "about 2,000 people", "numbers_differ"),
        ("I don't know", "I do not know", "negation_differs"),
        ("in March 2020, who won?", "who won in March 2020?", "swapped_roles"),
        ("who won in 2018 the cup", "who won the cup in 2018", "swapped_roles"),
        ("In Python, how do I sort a list?", "How do I sort a list in Python?", "swapped_roles"),
        ("capital of peru", "capital of Peru", "names_differ"),
        ("his car", "her car", "opposite_words"),
        ("Is it 5 km?", "Is it 5 kilometers?", "opposite_words"),
        ("the minister of Peru as of 2016", "as of 2016, the minister of Peru", "swapped_roles"),
    ],
)
def test_harmless_changes_are_not_flagged(a: str, b: str, feature: str) -> None:
    assert features(a, b)[feature] == 0


@given(st.text(max_size=60), st.text(max_size=60))
def test_features_are_symmetric_and_finite(a: str, b: str) -> None:
    one, other = features(a, b), features(b, a)
    # Inversions count from one side; all else is the same from both.
    assert {k: v for k, v in one.items() if k != "inversions"} == pytest.approx(
        {k: v for k, v in other.items() if k != "inversions"}
    )
    assert all(abs(value) < 100 for value in one.values())
