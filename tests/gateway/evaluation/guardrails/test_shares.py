from __future__ import annotations

import numpy as np

from gateway.evaluation.guardrails.shares import detection, percent, share, threshold_for


def test_at_most_the_rate_lies_above_the_threshold() -> None:
    negative = np.arange(1000) / 1000
    for rate in (0.0, 0.001, 0.01, 0.5):
        assert (negative > threshold_for(negative, rate)).mean() <= rate
    assert (negative > threshold_for(negative, 0.01)).sum() == 10


def test_ties_are_not_counted_as_found() -> None:
    found = detection([0.5, 0.5], [0.5] * 100, 0.5)
    assert found["auroc"] == 0.5
    assert found["recall_at_0.01"]["share"] == 0.0
    assert found["recall_shipped"]["share"] == 1.0


def test_no_row_has_no_share() -> None:
    assert percent(share(np.zeros(0, bool))) == percent(None) == "–"
    assert percent(share(np.ones(10, bool))) == "100.0 (72–100)"
