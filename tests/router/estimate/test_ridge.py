"""Conjugate gradients find what the closed form gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from router.estimate.ridge import Rows, ridge


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(0, 4), st.integers(0, 40))
def test_the_solution_is_that_of_the_normal_equations(seed: int, count: int, dense: int, sparse: int) -> None:
    draw = np.random.default_rng(seed)
    surface = draw.standard_normal((count, dense)).astype(np.float32)
    columns = [np.unique(draw.integers(0, sparse, draw.integers(0, 6))) if sparse else np.zeros(0, np.int64)
               for _ in range(count)]  # fmt: skip
    targets = draw.standard_normal(count).astype(np.float32)
    penalty = draw.uniform(0.5, 3.0, dense + sparse)
    full = np.zeros((count, dense + sparse))
    full[:, :dense] = surface
    for row, found in enumerate(columns):
        full[row, dense + found] = 1 / np.sqrt(max(1, len(found)))
    rows = Rows(surface, columns, sparse)
    values = draw.standard_normal(dense + sparse)
    np.testing.assert_allclose(rows.times(values), full @ values, atol=1e-6)
    np.testing.assert_allclose(rows.transposed_times(full @ values), full.T @ full @ values, atol=1e-5)
    centred = full - full.mean(0)
    expected = np.linalg.solve(centred.T @ centred + np.diag(penalty), centred.T @ (targets - targets.mean()))
    weights, bias = ridge(rows, targets, penalty)
    np.testing.assert_allclose(weights, expected, atol=5e-3)
    np.testing.assert_allclose(bias, targets.mean() - full.mean(0) @ expected, atol=1e-2)
