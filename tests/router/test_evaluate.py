from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.evaluate import accuracies, auc, flips, measure, share_for

WEAK = np.array([1, 1, 0, 0, 0], np.float32)
STRONG = np.array([1, 1, 1, 1, 0], np.float32)


def test_a_perfect_order_needs_strong_calls_for_the_gain_only() -> None:
    found = measure(STRONG - WEAK, WEAK, STRONG)
    assert found.weak == pytest.approx(0.4) and found.strong == found.oracle == pytest.approx(0.8)
    assert found.strong_share_99 == pytest.approx(0.4)
    assert found.apgr == found.oracle_apgr == pytest.approx(0.8)
    assert found.random_share_95 == pytest.approx(0.9)


def test_equal_predictions_count_as_random() -> None:
    assert measure(np.zeros(5, np.float32), WEAK, STRONG).apgr == pytest.approx(0.5)
    assert measure(WEAK - STRONG, WEAK, STRONG).apgr == pytest.approx(0.2)


@given(st.lists(st.tuples(st.floats(-1, 1, width=32), st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_curves_begin_with_the_weak_and_end_with_the_strong_model(
    rows: list[tuple[float, bool, bool]],
) -> None:
    predicted, weak, strong = (np.array(column, np.float32) for column in zip(*rows, strict=True))
    curve = accuracies(predicted, weak, strong)
    assert curve[0] == pytest.approx(weak.mean()) and curve[-1] == pytest.approx(strong.mean(), abs=1e-5)
    assert curve.max() <= np.maximum(weak, strong).mean() + 1e-5
    assert share_for(curve, float(curve.max())) <= 1


def test_flips_are_counted_at_the_threshold() -> None:
    prompts = ["a", "bb", "ccc"]
    assert flips(len, prompts, 2.5, lambda draw, text: text) == 0
    assert flips(len, prompts, 2.5, lambda draw, text: text + "x") == pytest.approx(1 / 3)
    assert flips(len, [], 2.5, lambda draw, text: str(draw)) == 0


def test_the_area_under_the_roc_curve() -> None:
    labels = np.array([True, True, False, False])
    assert auc(np.array([3, 2, 1, 0], np.float32), labels) == 1.0
    assert auc(np.array([1, 1, 1, 1], np.float32), labels) == 0.5
    assert auc(np.array([2, 0, 1, 0], np.float32), labels) == pytest.approx(0.625)
    assert auc(np.array([2, 0, 1, 0], np.float32), np.ones(4, bool)) == 0.5
