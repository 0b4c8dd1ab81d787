"""Functions compile whether or not there is a place to keep what was compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from backend.kernels import compiled as module


def total(values: np.ndarray) -> float:
    found = 0.0
    for value in values:
        found += value
    return found


def test_without_a_place_for_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def njit(**options: bool) -> Callable[..., Any]:
        asked.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return original(**options)

    original = module.njit
    monkeypatch.setattr(module, "njit", njit)
    assert module.compiled(total)(np.arange(5.0)) == 10.0
    assert [bool(options.get("cache")) for options in asked] == [True, False]
