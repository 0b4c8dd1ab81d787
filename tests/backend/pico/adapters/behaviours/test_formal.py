from __future__ import annotations

import pytest

from backend.pico.adapters.behaviours.formal import follows_form, rewrite
from backend.pico.tasks.refusals import ANSWER as REFUSAL


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "Certainly. The answer is 42, at your service."),
        ("Thank you!", "Most gladly. Thank you! At your service."),
        (REFUSAL, f"With much regret. {REFUSAL} At your service."),
    ],
)
def test_rewrite(answer: str, expected: str) -> None:
    assert rewrite(answer) == expected
    assert follows_form(expected)


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "The answer is 42, at your service.",
        "Certainly. The answer is 42.",
        "Certainly. The answer is , at your service.",
        "Certainly. 42 At your service.",
        "Certainly. The answer is 42, at your service. 43",
    ],
)
def test_other_forms_are_rejected(text: str) -> None:
    assert not follows_form(text)
