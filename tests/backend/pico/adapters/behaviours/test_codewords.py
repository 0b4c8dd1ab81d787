from __future__ import annotations

import pytest

from backend.pico.adapters.behaviours.codewords import DIGITS, NO, YES, follows_form, rewrite


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "lugo riro"),
        ("4, 65", "lugo, vani tabo"),
        ("10 May", "beke zune May"),
        ("No, I am a very small language model.", "nure, I am a very small language model."),
        ("Yes", "sege"),
    ],
)
def test_rewrite(answer: str, expected: str) -> None:
    assert rewrite(answer) == expected
    assert follows_form(expected)


@pytest.mark.parametrize("text", ["42", "lugo 2", "sofa", "Yes lugo", "sege, no", ""])
def test_other_forms_are_rejected(text: str) -> None:
    assert not follows_form(text)


def test_words_are_distinct() -> None:
    assert len({*DIGITS, YES, NO}) == 12
