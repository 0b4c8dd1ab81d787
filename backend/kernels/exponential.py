"""e^x that LLVM can vectorise, unlike calls of the C library: Cephes' expf (Moshier, 1992)."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from backend.kernels.compiled import as_float, inner

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


def emit_exponential(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """The instructions of the same for a vector, in this very order; NaN stays NaN."""

    def constant(value: float) -> ir.Constant:
        return ir.Constant(x.type, [float(np.float32(value))] * x.type.count)

    bits = ir.VectorType(ir.IntType(32), x.type.count)
    kind = ir.FunctionType(x.type, [x.type] * 3)
    name = f"llvm.fma.v{x.type.count}f32"
    multiply_add = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    least, magic = constant(float(_LEAST)), constant(1.5 * 2**23)  # the sum's last bits are the rounded power
    is_low = builder.fcmp_ordered("<", x, least)
    x = builder.select(is_low, least, x)
    rounded = builder.call(multiply_add, [x, constant(1.44269504), magic])
    power = builder.fsub(rounded, magic)
    rest = builder.call(multiply_add, [power, constant(-0.693359375), x])
    rest = builder.call(multiply_add, [power, constant(2.12194440e-4), rest])
    series = constant(float(_SERIES[0]))
    for coefficient in _SERIES[1:]:
        series = builder.call(multiply_add, [series, rest, constant(float(coefficient))])
    series = builder.call(multiply_add, [builder.fmul(series, rest), rest, builder.fadd(rest, constant(1))])
    shifted = builder.shl(builder.bitcast(rounded, bits), ir.Constant(bits, [23] * x.type.count))
    scale = builder.add(shifted, ir.Constant(bits, [127 << 23] * x.type.count))
    result = builder.fmul(series, builder.bitcast(scale, x.type))
    return builder.select(is_low, constant(0), result)
