from __future__ import annotations

import math

import numpy as np
import pytest
from llvmlite import ir

from backend.kernels.compiled import compiled
from backend.kernels.exponential import emit_exponential, exponential
from backend.kernels.vectors import Emitter, emitted


@pytest.mark.parametrize("value", [-59.9, -10.3, -1.0, -1e-4, 0.0, 0.3, 1.0, 20.5, 60.0])
def test_is_the_exponential(value: float) -> None:
    assert exponential(np.float32(value)) == pytest.approx(math.exp(np.float32(value)), rel=3e-7)


@pytest.mark.parametrize("value", [-60.1, -87.0, -200.0, -1e30])
def test_is_nothing_far_below(value: float) -> None:
    """Not a subnormal number, nor one whose quotients are."""
    assert exponential(np.float32(value)) == 0.0


def test_is_bounded_above() -> None:
    assert exponential(np.float32(200)) == exponential(np.float32(60))


@emitted()
def exponentials(emit: Emitter, values: ir.Value, found: ir.Value) -> None:
    """Store those of 16 floats at the address `values` at `found`."""
    emit.write(emit_exponential(emit, emit.read(values)), found)


def test_of_a_vector() -> None:
    @compiled
    def compute(values: np.ndarray, found: np.ndarray) -> None:
        exponentials(values.ctypes.data, found.ctypes.data)

    values = np.array(
        [-np.inf, -1e30, -87, -60.1, -59.9, -10.3, -1, -0.35, -1e-4, 0, 0.3, 1, 20.5, 60, np.nan, 88],
        np.float32,
    )
    found = np.empty_like(values)
    compute(values, found)
    assert (found[:4] == 0).all() and np.isnan(found[14])
    finite = [*range(4, 14), 15]
    np.testing.assert_allclose(found[finite], np.exp(values[finite].astype(np.float64)), rtol=3e-7)
