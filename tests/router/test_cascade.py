from __future__ import annotations

import math

import pytest

from router.cascade import confidence, is_json, is_refusal


def test_confidence_is_the_least_probability() -> None:
    assert confidence([]) is None
    assert confidence([0.0, math.log(0.25), math.log(0.5)]) == pytest.approx(0.25)
    assert confidence([0.1]) == 1.0  # rounding above 0


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help.",
        "I cannot do that.",
        "I don't know.",
        "As an AI, I …",
        "Sorry, I am not able",
    ],
)
def test_refusals(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize("text", ["", "42", "I can do that.", "Sorry is a word.", "The answer is: I cannot"])
def test_answers(text: str) -> None:
    assert not is_refusal(text)


def test_json_is_the_whole_text() -> None:
    assert is_json(' {"a": [1]} ')
    assert not is_json('{"a": 1} and more') and not is_json("")
