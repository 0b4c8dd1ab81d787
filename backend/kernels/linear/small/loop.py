"""Products with a small weight in tiles (see kernels.tiles): sums in the order of the weight's columns."""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import inner, next_part, pointer_to, threaded
from backend.kernels.tiles import TILE_COLUMNS, add_tile

_U = np.uint64
_floats, _shorts = pointer_to(types.float32), pointer_to(types.uint16)


@inner
def _multiply(job, weights):
    """y [rows, columns] = x [rows, k] · weights + bias; parts are tiles."""
    count, k, columns, width = job[5], job[6], job[7], TILE_COLUMNS
    bias, x = carray(_floats(job[2]), columns), carray(_floats(job[3]), count * k)
    y, sums = carray(_floats(job[4]), count * columns), np.empty(count * width, np.float32)
    begin = next_part(job) * width
    while begin < columns:
        sums[:] = 0
        place = (_U(begin * k), _U(width))
        add_tile(weights, place, _U(k), x, (_U(0), _U(k)), sums, (_U(0), _U(width)), _U(count))
        for row in range(count):
            for i in range(min(width, columns - begin)):
                y[row * columns + begin + i] = sums[row * width + i] + bias[begin + i]
        begin = next_part(job) * width


@threaded
def multiply_bfloat16(job):
    """Multiply by weights [tiles, k, 32] that are the bits of bfloat16."""
    _multiply(job, carray(_shorts(job[1]), -(-job[7] // TILE_COLUMNS) * TILE_COLUMNS * job[6]))


@threaded
def multiply_float32(job):
    """Multiply by weights [tiles, k, 32] of float32."""
    _multiply(job, carray(_floats(job[1]), -(-job[7] // TILE_COLUMNS) * TILE_COLUMNS * job[6]))
