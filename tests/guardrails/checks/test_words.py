from __future__ import annotations

import pytest

from guardrails.checks.words import is_content, normal, sentences, words


@pytest.mark.parametrize(
    ("one", "other"),
    [("three", "3"), ("4,500", "4500"), ("signed", "signs"), ("Company's", "company"), ("50%", "50")],
)
def test_equal_words_are_equal(one: str, other: str) -> None:
    assert normal(one) == normal(other)


def test_words_and_sentences() -> None:
    assert words("Don't pay 4,500.50 or 5%!") == ["Don't", "pay", "4,500.50", "or", "5%"]
    assert sentences("One. Two\nthree") == ["One.", "Two", "three"]
    assert [word for word in words("She doesn't like the blue car") if is_content(word)] == [
        "like",
        "blue",
        "car",
    ]
