"""Rows of a state and of a step as one sequence: their convolution, and which of them are kept."""

from __future__ import annotations

import numpy as np
import pytest

from backend.kernels.state_rows import convolve, keep, row_of

RNG = np.random.default_rng(1)
ROWS, INPUTS = (RNG.standard_normal((9, 7), dtype=np.float32) for _ in range(2))
KNOWN, BEGIN = 5, 2
WHOLE = np.concatenate((ROWS[:KNOWN], INPUTS[BEGIN:]))


def test_rows_are_one_sequence() -> None:
    for number, row in enumerate(WHOLE):
        assert (row_of(number, ROWS, INPUTS, KNOWN, BEGIN) == row).all()


@pytest.mark.parametrize("number", [0, 3, 6, 9])
def test_convolution(number: int) -> None:
    conv = RNG.standard_normal((7, 3), dtype=np.float32)
    result = RNG.standard_normal(4, dtype=np.float32)
    total = result + (WHOLE[number : number + 3, 2:6].T * conv[2:6]).sum(1)
    convolve(result, 2, number, ROWS, INPUTS, conv, KNOWN, BEGIN)
    np.testing.assert_allclose(result, total / (1 + np.exp(-total)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", [1, 4, 7])
def test_rows_that_are_kept(source: int) -> None:
    rows = ROWS.copy()
    keep(rows, INPUTS, 3, 2, source, 5, KNOWN, BEGIN)
    assert (rows[:5, 3:5] == WHOLE[source : source + 5, 3:5]).all()
    rows[:5, 3:5] = ROWS[:5, 3:5]
    assert (rows == ROWS).all()
