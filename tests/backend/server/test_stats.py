from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backend.server.stats import Histogram


@given(values=st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 99.0])))
def test_counts_are_cumulative_and_both_ways_to_observe_agree(values: list[float]) -> None:
    one_by_one, at_once = Histogram((1.0, 2.0)), Histogram((1.0, 2.0))
    for value in values:
        one_by_one.observe(value)
    at_once.observe_many(np.array(values, dtype=np.float64))
    want = [sum(v <= 1 for v in values), sum(v <= 2 for v in values), len(values)]
    assert one_by_one.cumulative() == at_once.cumulative() == want
    assert one_by_one.total == at_once.total == sum(values)
