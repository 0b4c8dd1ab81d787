from __future__ import annotations

import math

import numpy as np
import pytest

from backend.kernels.exponential import exponential


@pytest.mark.parametrize("value", [-87.0, -10.3, -1.0, -1e-4, 0.0, 0.3, 1.0, 20.5, 87.0])
def test_is_the_exponential(value: float) -> None:
    assert exponential(np.float32(value)) == pytest.approx(math.exp(np.float32(value)), rel=3e-7)


@pytest.mark.parametrize(("value", "bound"), [(-200.0, -87.0), (200.0, 87.0), (-math.inf, -87.0)])
def test_is_bounded(value: float, bound: float) -> None:
    assert exponential(np.float32(value)) == exponential(np.float32(bound))
