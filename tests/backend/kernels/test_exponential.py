from __future__ import annotations

import math

import numpy as np
import pytest

from backend.kernels.exponential import exponential


@pytest.mark.parametrize("value", [-59.9, -10.3, -1.0, -1e-4, 0.0, 0.3, 1.0, 20.5, 60.0])
def test_is_the_exponential(value: float) -> None:
    assert exponential(np.float32(value)) == pytest.approx(math.exp(np.float32(value)), rel=3e-7)


@pytest.mark.parametrize("value", [-60.1, -87.0, -200.0, -1e30])
def test_is_nothing_far_below(value: float) -> None:
    """Not a subnormal number, nor one whose quotients are."""
    assert exponential(np.float32(value)) == 0.0


def test_is_bounded_above() -> None:
    assert exponential(np.float32(200)) == exponential(np.float32(60))
