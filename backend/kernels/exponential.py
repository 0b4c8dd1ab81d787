"""e^x that LLVM can vectorise, unlike calls of the C library: Cephes' expf (Moshier, 1992)."""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from backend.kernels.compiled import as_float, inner
from backend.kernels.vectors import FLOATS, INTS, Emitter, constant

_HALF, _ONE = np.float32(0.5), np.float32(1)
_SERIES = tuple(map(np.float32, (1.9875691e-4, 1.3981999e-3, 8.3334519e-3, 4.1665796e-2, 1.6666665e-1, 0.5)))
_LEAST, _MOST = np.float32(-60), np.float32(60)


@inner
def exponential(x: np.float32) -> np.float32:
    """e^x with a relative error below 3e-7 for -60 < x <= 60; 0 below, e^60 above.

    So neither a result nor a quotient of two is subnormal, which is slow on some processors.
    """
    is_seen = np.float32(x > _LEAST)
    x = min(max(x, _LEAST), _MOST)
    power = np.floor(x * np.float32(1.44269504) + _HALF)
    rest = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = series * rest + coefficient
    series = series * rest * rest + rest + _ONE
    scaled: np.float32 = is_seen * series * as_float((np.int32(power) + np.int32(127)) << np.int32(23))
    return scaled


def emit_exponential(emit: Emitter, x: ir.Value) -> ir.Value:
    """The instructions of the same for a vector of 16, in this very order; NaN stays NaN."""

    def floats(value: float) -> ir.Constant:
        return constant(FLOATS, float(np.float32(value)))

    least, magic = floats(float(_LEAST)), floats(1.5 * 2**23)  # the sum's last bits are the rounded power
    is_low = emit.fcmp_ordered("<", x, least)
    x = emit.select(is_low, least, x)
    rounded = emit.multiply_add(x, floats(1.44269504), magic)
    power = emit.fsub(rounded, magic)
    rest = emit.multiply_add(power, floats(-0.693359375), x)
    rest = emit.multiply_add(power, floats(2.12194440e-4), rest)
    series = floats(float(_SERIES[0]))
    for coefficient in _SERIES[1:]:
        series = emit.multiply_add(series, rest, floats(float(coefficient)))
    series = emit.multiply_add(emit.fmul(series, rest), rest, emit.fadd(rest, floats(1)))
    shifted = emit.shl(emit.bitcast(rounded, INTS), constant(INTS, 23))
    scale = emit.add(shifted, constant(INTS, 127 << 23))
    result = emit.fmul(series, emit.bitcast(scale, FLOATS))
    return emit.select(is_low, floats(0), result)
