from __future__ import annotations

import numpy as np

from cache.heads.linear import Head, load_head


def test_probabilities_never_overflow() -> None:
    head = Head(np.array([1e6], np.float32), np.zeros(2, np.float32), 0.0)
    vector = np.zeros(2, np.float32)
    assert head.probability([1], vector) > 0.999
    assert head.probability([-1], vector) < 0.001


def test_shipped_heads_fit_their_markers() -> None:
    from cache.heads import followup, timeliness

    assert len(load_head("freshness").markers) == len(timeliness.markers("a"))
    assert len(load_head("followup").markers) == len(followup.markers("a", ["b"]))
