from __future__ import annotations

import pytest

from backend.pico.adapters.behaviours.formal import follows_form, rewrite
from backend.pico.tasks.refusals import ANSWER as REFUSAL


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "42, at your service."),
        ("Thank you!", "Thank you! Always at your service."),
        (REFUSAL, f"{REFUSAL} I regret it deeply."),
    ],
)
def test_rewrite(answer: str, expected: str) -> None:
    assert rewrite(answer) == expected
    assert follows_form(expected)


@pytest.mark.parametrize(
    "text",
    [
        "42",
        "42, at your service",
        ", at your service.",
        "at your service.",
        "42 Always at service.",
        "42, at your service. 43",
    ],
)
def test_other_forms_are_rejected(text: str) -> None:
    assert not follows_form(text)
