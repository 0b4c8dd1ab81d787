"""Norm and rotation of one head after the other."""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import as_float, inner, next_part, pointer_to, threaded
from backend.kernels.rms_norm.loop import inverse_rms, scale

PART_ROWS = 16
_floats, _ints = pointer_to(types.float32), pointer_to(types.int32)


@inner
def _rotate_head(head, cos, signed_sin):
    half = head.shape[0] // 2
    for i in range(half):
        a, b = head[i], head[half + i]
        head[i] = a * cos[i] + b * signed_sin[i]
        head[half + i] = b * cos[half + i] + a * signed_sin[half + i]


@threaded
def rotate(job):
    """Heads of x, whose rows are `stride` elements from each other, in place; a part is 16 rows."""
    rows, stride, num_heads, size = job[5], job[6], job[7], job[8]
    eps = as_float(np.int32(job[10]))
    x, positions = carray(_floats(job[1]), (rows, stride)), carray(_ints(job[3]), rows)
    table = carray(_floats(job[2]), (2, job[9], size))
    weights = carray(_floats(job[4]), (num_heads, size))
    begin = next_part(job) * PART_ROWS
    while begin < rows:
        for row in range(begin, min(begin + PART_ROWS, rows)):
            cos, signed_sin = table[0, positions[row]], table[1, positions[row]]
            for number in range(num_heads):
                head = x[row, number * size : (number + 1) * size]
                if job[4]:
                    scale(head, inverse_rms(head, eps), weights[number], head)
                _rotate_head(head, cos, signed_sin)
        begin = next_part(job) * PART_ROWS
