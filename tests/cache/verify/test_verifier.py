from __future__ import annotations

import threading

import numpy as np
import pytest

from cache.verify import Verifier
from cache.verify.words import MAX_CHARS
from tests.cache.classifiers.encoder import vector_of

SAME = [
    ("How do I learn Python quickly?", "How can I learn Python quickly?"),
    ("How can I lose weight?", "What is the best way to lose weight?"),
    ("What's the capital of Peru?", "what is the capital of peru"),
    ("In Python, how do I sort a list?", "How do I sort a list in Python?"),
    ("about 2,000 people in March 2020?", "about 2k people in Mar 2020?"),
]
DIFFERENT = [
    ("Is it safe to eat raw eggs?", "Is it not safe to eat raw eggs?"),
    ("Can I take aspirin every day?", "Can't I take aspirin every day?"),
    ("Who won the world cup in 1998?", "Who won the world cup in 2002?"),
    ("Who was president as of March 3, 2012?", "Who was president as of March 3, 2016?"),
    ("flights from Paris to London", "flights from London to Paris"),
    ("Is Go faster than Rust?", "Is Rust faster than Go?"),
    ("What is the largest lake in Africa?", "What is the smallest lake in Africa?"),
    ("How do I convert 5 miles to km?", "How do I convert 6 miles to km?"),
    ("What is the capital of Peru?", "What is the capital of Chile?"),
    ("recipes with eggs", "recipes without eggs"),
]


def probability(a: str, b: str) -> float:
    return float(Verifier.load().probabilities(a, vector_of(a), [b], vector_of(b)[None])[0])


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_what_reverses_the_answer_is_below_every_paraphrase(a: str, b: str) -> None:
    assert probability(a, b) < min(probability(*pair) for pair in SAME)
    assert probability(a, b) < Verifier.load().threshold(0.01)


@pytest.mark.parametrize(("a", "b"), SAME)
def test_order_of_the_pair_does_not_matter_much(a: str, b: str) -> None:
    assert probability(a, b) == pytest.approx(probability(b, a), abs=0.1)


def test_candidates_are_judged_alike_alone_and_together() -> None:
    asked = "How do I learn Python quickly?"
    known = [text for pair in [*SAME, *DIFFERENT] for text in pair]
    vectors = np.stack([vector_of(text) for text in known])
    together = Verifier.load().probabilities(asked, vector_of(asked), known, vectors)
    alone = [probability(asked, text) for text in known]
    np.testing.assert_allclose(together, alone, atol=1e-4)
    assert together.dtype == np.float32


def test_no_candidates_and_odd_texts() -> None:
    verifier = Verifier.load()
    none = verifier.probabilities("a", vector_of("a"), [], np.zeros((0, 384), np.float32))
    assert none.shape == (0,)
    for text in ("?", "日本の首都は", "\n", "😀"):
        assert 0 <= probability(text, text) <= 1


def test_texts_that_are_not_compared_in_full_are_never_served() -> None:
    long = "word " * (MAX_CHARS // 5) + "end"
    vectors = np.stack([vector_of("word"), vector_of("word")])
    found = Verifier.load().probabilities("word", vector_of("word"), [long, "word"], vectors)
    assert found[0] == 0 < found[1]


def test_thresholds_fall_as_more_errors_are_allowed() -> None:
    verifier = Verifier.load()
    found = [verifier.threshold(share) for share in (0.0, 0.005, 0.01, 0.02, 0.05)]
    assert found[0] > 1  # nothing is served by meaning
    assert found == sorted(found, reverse=True)


def test_shipped_verifier_is_shared_and_small() -> None:
    from cache.verify.verifier import WEIGHTS

    assert Verifier.load() is Verifier.load()
    assert len(Verifier.load().version) == 16
    assert WEIGHTS.stat().st_size < 3 * 2**20


def test_threads_may_share_it() -> None:
    expected = [probability(a, b) for a, b in DIFFERENT]
    found: dict[int, list[float]] = {}

    def run(number: int) -> None:
        found[number] = [probability(a, b) for a, b in DIFFERENT]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(values == expected for values in found.values()) and len(found) == 4
