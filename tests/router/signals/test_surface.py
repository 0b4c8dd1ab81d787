from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.signals.surface import MAX_CHARS, NAMES, read_surface


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("What is 17 + 250?", "num_numbers", 2),
        ("What is 17 + 250?", "max_digits", 3),
        ("What is 17 + 250?", "has_maths", True),
        ("def f(x):\n    return x", "has_code", True),
        ("Which one?\nA. red\nB. blue\nC. green", "num_choices", 3),
        ("You must use exactly three words.", "num_constraints", 2),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "num_table_rows", 3),
        ("Hello there", "num_numbers", 0),
        ("Hello there", "has_code", False),
        ("Привет", "other_share", 1.0),
    ],
)
def test_what_is_read(text: str, field: str, value: object) -> None:
    assert getattr(read_surface(text), field) == value


@given(st.text(max_size=300))
def test_any_text_has_a_finite_vector(text: str) -> None:
    vector = read_surface(text).vector()
    assert len(vector) == len(NAMES)
    assert all(abs(value) < 1_000 for value in vector)


def test_of_a_long_text_only_the_ends_are_read() -> None:
    text = "1 " + "a" * 2 * MAX_CHARS + " 2"
    found = read_surface(text)
    assert found.num_numbers == 2
    assert found.num_chars == len(text)
