from __future__ import annotations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from guardrails.checks import injection
from guardrails.scan.prefilter import Prefilter, loosened

PATTERNS = [
    r"(?<!\w)ab{2,3}(?=\s|[)(])c{0,4}(?!x)",
    r"\b(?:ж|\w)\d{1,2}+[\W_]{1,6}?z",
    r"[\w.-]{3,}+@(?:(?!q)[^z\n])*+k",
    r"a.{0,3}b|x(?:c|.{1,3}q).{2,4}z",
]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"a(?=b(c)[)])d", [["ad"]]),
        (r"\ba{0,5}b{1,6}?c{2,9}+d{3}e?+", [["a*b+c{2,}d{3}e?"]]),
        (r"(?:(?!x)[^\n(])*+", [[r"(?:[^\n(])*"]]),
        (r"a.{0,80}b|c(?:.{1,3}|d)[.|]+", [["a", "b"], ["c(?:.+|d)[.|]+"]]),
    ],
)
def test_loosened(pattern: str, expected: list[list[str]]) -> None:
    assert loosened(pattern) == expected


@given(st.text(st.sampled_from("abcxz \n()жk@._q12"), max_size=40))
def test_every_match_is_a_candidate(text: str) -> None:
    found = set(Prefilter(PATTERNS).candidates(text))
    for number, pattern in enumerate(PATTERNS):
        if regex.search(pattern, text, regex.IGNORECASE | regex.DOTALL):
            assert number in found


def test_few_patterns_are_tried_on_ordinary_text() -> None:
    text = "Please summarise the rules of the game for new users. Do not use the word system. " * 40
    assert len(injection._PREFILTER.candidates(text)) <= 2
