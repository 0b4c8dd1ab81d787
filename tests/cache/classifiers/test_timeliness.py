from __future__ import annotations

import pytest

from cache.classifiers import freshness, time_dependence
from cache.classifiers.timeliness import SLOW_TTL_S, VOLATILE_TTL_S, lifetime_s
from tests.cache.classifiers.encoder import vector_of

DAY_S = 86400.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What's the weather now?", "volatile"),
        ("bitcoin price", "volatile"),
        ("What time is it in Tokyo?", "volatile"),
        ("Who is the president of France?", "slow"),
        ("What is the latest Python version?", "slow"),
        ("population of India", "slow"),
        ("Who was the president of France in 1995?", "static"),
        ("What is the capital of France?", "static"),
        ("Who wrote Hamlet?", "static"),
        ("How do I reverse a list in Python?", "static"),
        ("What is my account balance?", "never"),
        ("Where is my order?", "never"),
        ("What's on my calendar today?", "never"),
        ("How do I check my account balance?", "static"),
    ],
)
def test_classes(text: str, expected: str) -> None:
    assert freshness(text, vector_of(text)) == expected


def test_time_dependence_ranks_questions() -> None:
    changing = ["who won the world cup last year", "Who is the CEO of Acme?", "average rent in Oslo"]
    lasting = ["who invented the telephone", "What does DNA stand for?", "Explain recursion with an example"]
    scores = [[time_dependence(text, vector_of(text)) for text in texts] for texts in (changing, lasting)]
    assert min(scores[0]) > max(scores[1])


def test_odd_texts_have_a_class() -> None:
    for text in ("?", "日本の首都は", "a" * 500, "\n\n"):
        assert freshness(text, vector_of(text)) in {"static", "slow", "volatile", "never"}


@pytest.mark.parametrize(
    ("kind", "ttl_s", "expected"),
    [
        ("static", DAY_S, DAY_S),
        ("slow", DAY_S, SLOW_TTL_S),
        ("slow", 10.0, 10.0),
        ("volatile", DAY_S, VOLATILE_TTL_S),
        ("volatile", 1.0, 1.0),
        ("never", DAY_S, VOLATILE_TTL_S),
    ],
)
def test_an_answer_lives_no_longer_than_it_is_right(kind: str, ttl_s: float, expected: float) -> None:
    assert lifetime_s(kind, ttl_s) == expected  # type: ignore[arg-type]
