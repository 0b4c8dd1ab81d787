from __future__ import annotations

import numpy as np

from cache.heads.linear import Head, fit, load_head


def test_fit_finds_the_separating_column() -> None:
    random = np.random.default_rng(0)
    inputs = random.standard_normal((400, 3)).astype(np.float32)
    labels = (inputs[:, 1] + 0.5 > 0).astype(np.float32)
    found = fit(inputs, labels, np.full(3, 0.5, np.float32))
    assert found[1] > 5 * max(abs(found[0]), abs(found[2]))
    assert found[3] > 0


def test_probabilities_never_overflow() -> None:
    head = Head(np.array([1e6], np.float32), np.zeros(2, np.float32), 0.0)
    vector = np.zeros(2, np.float32)
    assert head.probability([1], vector) > 0.999
    assert head.probability([-1], vector) < 0.001


def test_shipped_heads_fit_their_markers() -> None:
    from cache.heads import followup, timeliness

    assert len(load_head("freshness").markers) == len(timeliness.markers("a"))
    assert len(load_head("followup").markers) == len(followup.markers("a", ["b"]))
