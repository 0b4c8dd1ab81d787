"""e^x that LLVM can vectorise, unlike calls of the C library: Cephes' expf (Moshier, 1992)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from backend.kernels.compiled import inner, intrinsic

_HALF, _ONE = np.float32(0.5), np.float32(1)
_LEAST, _MOST = np.float32(-60), np.float32(60)


@intrinsic
def _as_float(typing: object, bits: object) -> tuple[object, Callable[..., Any]]:
    def generate(
        context: object, builder: ir.IRBuilder, signature: object, arguments: list[ir.Value]
    ) -> ir.Value:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@inner
def exponential(x: np.float32) -> np.float32:
    """e^x with a relative error below 3e-7 for -60 < x <= 60; 0 below, e^60 above.

    So neither a result nor a quotient of two is subnormal, which is slow on some processors.
    """
    is_seen = np.float32(x > _LEAST)
    x = min(max(x, _LEAST), _MOST)
    power = np.floor(x * np.float32(1.44269504) + _HALF)
    rest = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    series = np.float32(1.9875691e-4)
    series = series * rest + np.float32(1.3981999e-3)
    series = series * rest + np.float32(8.3334519e-3)
    series = series * rest + np.float32(4.1665796e-2)
    series = series * rest + np.float32(1.6666665e-1)
    series = series * rest + _HALF
    series = series * rest * rest + rest + _ONE
    scaled: np.float32 = is_seen * series * _as_float((np.int32(power) + np.int32(127)) << np.int32(23))
    return scaled
