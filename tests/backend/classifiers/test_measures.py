from __future__ import annotations

import numpy as np
import pytest

from backend.classifiers.measures import at_levels, auc, reliability, wilson


def test_auc_counts_ties_half() -> None:
    labels = np.array([True, False, True, False])
    assert auc(np.array([0.9, 0.1, 0.8, 0.2]), labels) == 1
    assert auc(np.array([0.5, 0.5, 0.5, 0.5]), labels) == 0.5
    assert auc(np.array([0.9, 0.9, 0.8, 0.1]), labels) == pytest.approx(0.625)
    assert auc(np.array([0.5]), np.array([True])) is None


def test_levels_and_reliability() -> None:
    scores, labels = np.array([0.995, 0.96, 0.6, 0.1]), np.array([True, False, True, False])
    found = {level.level: level for level in at_levels(scores, labels)}
    assert found[0.95].precision == 0.5 and found[0.95].recall == 0.5 and found[0.95].num_false == 1
    assert found[0.99].precision == 1
    bins = reliability(scores, labels)
    assert sum(one.num_pairs for one in bins) == 4
    assert bins[-1].share_same == 1


def test_wilson_interval() -> None:
    low, high = wilson(0, 100)
    assert low == 0 and high == pytest.approx(0.037, abs=1e-3)
    assert wilson(50, 100) == pytest.approx((0.404, 0.596), abs=1e-3)
    assert wilson(0, 0) == (0, 1)
