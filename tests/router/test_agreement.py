"""How far two answers agree: exact ones by words, long ones by meaning, never with other numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.agreement import agreement

LONG = "The treaty of 1648 ended the war, and it gave the princes of the empire more power than before."


@pytest.mark.parametrize(
    ("answer", "right", "cosine", "value"),
    [
        ("42", "42.", None, 1.0),
        ("It is Paris.", "Paris", None, 1.0),
        ("Paris", "It is Paris.", None, 1.0),
        ("Rome", "Paris", 0.9, 0.0),
        ("The answer is 41.", "The answer is 42.", 0.99, 0.0),
        ("I am sorry, I cannot help.", LONG, 0.9, 0.0),
        ("", "Paris", None, 0.0),
        (LONG.replace("ended", "finished"), LONG, 0.95, 1.0),
        (LONG.replace("1648", "1649"), LONG, 0.99, 0.0),
        (
            "Bread needs flour, water, salt and yeast, and some hours of patience.",
            LONG.replace("1648 ", ""),
            0.6,
            0.0,
        ),
    ],
)
def test_values(answer: str, right: str, cosine: float | None, value: float) -> None:
    assert agreement(answer, right, cosine) == pytest.approx(value)


def test_without_vectors_common_words_count() -> None:
    assert 0.3 < agreement(LONG.replace("princes", "kings"), LONG) < 1.0


@given(st.text(max_size=80), st.text(max_size=80), st.none() | st.floats(-1, 1))
def test_always_a_share_and_an_answer_agrees_with_itself(
    answer: str, right: str, cosine: float | None
) -> None:
    assert 0.0 <= agreement(answer, right, cosine) <= 1.0
    assert agreement(answer, answer, cosine) == 1.0
