"""SwiGLU and gelu of one row after the other."""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import as_float, next_part, pointer_to, threaded
from backend.kernels.exponential import exponential

PART_ROWS = 16
_floats = pointer_to(types.float32)
_ONE = np.float32(1)
_LEAST = np.float32(-1e3)  # gelu is nothing below; e^60, the largest divisor, would leave thousands
_LINEAR, _CUBIC = np.float32(-1.5957691216), np.float32(-0.0713548163)  # -2 sqrt(2 / pi), and 0.044715 of it


@threaded
def gate(job):
    """y [rows, size] from gates and ups [rows, 2, size]; a part is 16 rows."""
    rows, size = job[3], job[4]
    gate_up, y = carray(_floats(job[1]), (rows, 2, size)), carray(_floats(job[2]), (rows, size))
    begin = next_part(job) * PART_ROWS
    while begin < rows:
        for row in range(begin, min(begin + PART_ROWS, rows)):
            for i in range(size):
                own = gate_up[row, 0, i]
                y[row, i] = own / (_ONE + exponential(-own)) * gate_up[row, 1, i]
        begin = next_part(job) * PART_ROWS


@threaded
def sigmoid_gate(job):
    """The same by the gates' sigmoid."""
    rows, size = job[3], job[4]
    gate_up, y = carray(_floats(job[1]), (rows, 2, size)), carray(_floats(job[2]), (rows, size))
    begin = next_part(job) * PART_ROWS
    while begin < rows:
        for row in range(begin, min(begin + PART_ROWS, rows)):
            for i in range(size):
                y[row, i] = gate_up[row, 1, i] / (_ONE + exponential(-gate_up[row, 0, i]))
        begin = next_part(job) * PART_ROWS


@threaded
def clamped(job):
    """Clamped gates times the sigmoid of alpha times them, and times 1 + clamped ups."""
    rows, size, alpha, limit = job[3], job[4], as_float(np.int32(job[5])), as_float(np.int32(job[6]))
    gate_up, y = carray(_floats(job[1]), (rows, 2, size)), carray(_floats(job[2]), (rows, size))
    begin = next_part(job) * PART_ROWS
    while begin < rows:
        for row in range(begin, min(begin + PART_ROWS, rows)):
            for i in range(size):
                own, up = gate_up[row, 0, i], gate_up[row, 1, i]
                own = limit if own > limit else own  # NaN stays
                up = limit if up > limit else -limit if up < -limit else up
                y[row, i] = own / (_ONE + exponential(-alpha * own)) * (up + _ONE)
        begin = next_part(job) * PART_ROWS


@threaded
def gelu(job):
    """y [rows, size] from the first columns of x [rows, width]: x / (1 + e^-2u) is x / 2 · (1 + tanh(u))."""
    rows, size, width = job[3], job[4], job[5]
    x, y = carray(_floats(job[1]), (rows, width)), carray(_floats(job[2]), (rows, size))
    begin = next_part(job) * PART_ROWS
    while begin < rows:
        for row in range(begin, min(begin + PART_ROWS, rows)):
            for i in range(size):
                own = x[row, i]
                own = _LEAST if own < _LEAST else own  # NaN stays
                y[row, i] = own / (_ONE + exponential(own * (_LINEAR + _CUBIC * own * own)))
        begin = next_part(job) * PART_ROWS
