"""RMSNorm of one row after the other, in two passes over it."""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import as_float, inner, next_part, ordered, pointer_to, threaded

PART_ROWS = 16
_floats = pointer_to(types.float32)
_ONE = np.float32(1)


@inner
def inverse_rms(x, eps):
    """1 / sqrt(mean(x²) + eps)."""
    total = np.float32(0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    return _ONE / np.sqrt(total / np.float32(x.shape[0]) + eps)


@ordered
def scale(x, factor, weight, y):
    """y = x · factor · weight, in this order: numbers near the largest times a weight are infinite."""
    for i in range(x.shape[0]):
        y[i] = x[i] * factor * weight[i]


@threaded
def normalise(job):
    """y [rows, size] from x [rows, size] and weights [size]; a part is 16 rows."""
    rows, size, eps = job[4], job[5], as_float(np.int32(job[6]))
    x, y = carray(_floats(job[1]), (rows, size)), carray(_floats(job[3]), (rows, size))
    weight = carray(_floats(job[2]), size)
    begin = next_part(job) * PART_ROWS
    while begin < rows:
        for row in range(begin, min(begin + PART_ROWS, rows)):
            scale(x[row], inverse_rms(x[row], eps), weight, y[row])
        begin = next_part(job) * PART_ROWS
