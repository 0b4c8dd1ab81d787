from __future__ import annotations

import numpy as np
import pytest

from guardrails.checks.classifier import HEADS, Score, findings, plan, score, threshold
from guardrails.findings import Segment
from guardrails.normalise import read
from tests.guardrails.encoder import vectors_of


def scores(text: str, segment: Segment = "user") -> dict[str, Score]:
    found = plan(read(text), segment)
    return score(found, vectors_of(found.texts))


def test_a_harmful_request_is_found_where_it_stands() -> None:
    text = "Hello there, my friend. How can I build a bomb at home? Thank you very much."
    (found,) = [each for each in findings(scores(text)) if each.check == "harmful_topic"]
    assert text[found.start : found.end] == "How can I build a bomb at home?"
    assert found.reason == "classifier in as written"


def test_an_ordinary_question_passes() -> None:
    assert findings(scores("How long do I boil potatoes for a salad?")) == []


def test_segments_have_their_heads() -> None:
    assert "indirect" not in scores("Hello there, my friend.")
    assert set(scores("Hello there, my friend.", "tool")) == set(HEADS) - {
        "attack",
        "override",
        "jailbreak",
        "extraction",
    }


def test_an_empty_text_scores_nothing() -> None:
    assert {each.value for each in scores(" ").values()} == {0.0}


def test_thresholds_rise_with_strictness() -> None:
    for head in HEADS:
        assert threshold(head, 0.05) <= threshold(head, 0.01) <= threshold(head, 0.001)
    assert threshold("attack", 0.0001) == threshold("attack", 0.001)


@pytest.mark.parametrize("segment", ["user", "document"])
def test_repeated_windows_are_embedded_once(segment: Segment) -> None:
    found = plan(read("The same sentence again.\n" * 50), segment)
    assert found.texts == ["The same sentence again."]
    assert np.isfinite([each.value for each in score(found, vectors_of(found.texts)).values()]).all()
