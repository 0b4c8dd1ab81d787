"""SwiGLU of one row after the other."""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import next_part, pointer_to, threaded
from backend.kernels.exponential import exponential

PART_ROWS = 16
_floats = pointer_to(types.float32)
_ONE = np.float32(1)


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
