"""The loop, in Numba. Consecutive rows of one slot are multiplied together: its weights are read once.

The order of a row's sums does not depend on the other rows.
"""

import numpy as np
from numba import types
from numba.np.numpy_support import carray

from backend.kernels.compiled import inner, next_part, pointer_to, threaded
from backend.kernels.tiles import TILE_COLUMNS, add_tile, adder

LOW_STEP = 8
"""L, the rows of `down` of a slot, is a multiple of this."""

_U = np.uint64
_ZERO, _ONE = _U(0), _U(1)
_TILE, _HALF, _QUARTER = _U(TILE_COLUMNS), _U(TILE_COLUMNS // 2), _U(LOW_STEP)
_MOST_ROWS = _U(16)  # multiplied together: the size of the buffer for low = down x

_floats, _shorts, _integers = (pointer_to(kind) for kind in (types.float32, types.uint16, types.int64))
_add_half, _add_quarter = adder(TILE_COLUMNS // 2), adder(LOW_STEP)


@inner
def _add_rows(job, down, up):
    """y [T, N] += up[slot]ᵀ (down[slot] x), in place, where slots [T] >= 0; a part is 16 rows.

    x [T, K]; down [slots, K, L], up [slots, tiles, ranks, TILE_COLUMNS]. Part p of N uses low from p * ranks
    on; its columns of y end at ends[p], and its tiles of `up` hold no other part's columns.
    """
    num_rows = _U(job[4])
    slots, ends = carray(_integers(job[3]), job[4]), carray(_integers(job[5]), job[8])
    y = carray(_floats(job[1]), (job[4], ends[-1]))
    x = carray(_floats(job[2]), (job[4], down.shape[1]))
    low = np.empty((_MOST_ROWS, _U(down.shape[2])), np.float32)
    row = _U(next_part(job)) * _MOST_ROWS
    while row < num_rows:
        last = min(row + _MOST_ROWS, num_rows)
        while row < last:
            slot, count = slots[row], _ONE
            while row + count < last and slots[row + count] == slot:
                count += _ONE
            if slot >= 0:
                low[:] = 0
                _shrink(low.reshape(-1), x, down, _U(slot), row, count)
                _expand(y, low, up, _U(slot), (row, count), ends)
            row += count
        row = _U(next_part(job)) * _MOST_ROWS


@threaded
def add_rows_bfloat16(job):
    """With weights that are the bits of bfloat16; the words of a job are in looped.py."""
    down = carray(_shorts(job[6]), (job[9], job[10], job[11]))
    _add_rows(job, down, carray(_shorts(job[7]), (job[9], job[12], job[13], TILE_COLUMNS)))


@threaded
def add_rows_float32(job):
    """With weights in float32."""
    down = carray(_floats(job[6]), (job[9], job[10], job[11]))
    _add_rows(job, down, carray(_floats(job[7]), (job[9], job[12], job[13], TILE_COLUMNS)))


@inner
def _shrink(low, x, down, slot, row, count):
    """low [count, L] += x · down[slot] for `count` rows from `row` on."""
    features, num_low = _U(down.shape[1]), _U(down.shape[2])
    downs, xs = down.reshape(-1), x.reshape(-1)
    begin, origin = slot * features * num_low, (row * features, features)
    column = _ZERO
    while column + _TILE <= num_low:
        add_tile(downs, (begin + column, num_low), features, xs, origin, low, (column, num_low), count)
        column += _TILE
    if column + _HALF <= num_low:
        _add_half(downs, (begin + column, num_low), features, xs, origin, low, (column, num_low), count)
        column += _HALF
    if column < num_low:
        _add_quarter(downs, (begin + column, num_low), features, xs, origin, low, (column, num_low), count)


@inner
def _expand(y, low, up, slot, rows, ends):
    """y += low · up[slot] for `rows`, (first, count)."""
    (row, count), ranks, columns = rows, _U(up.shape[2]), _U(y.shape[1])
    num_low = _U(low.shape[1])
    ups, ys, lows = up.reshape(-1), y.reshape(-1), low.reshape(-1)
    place, begin = slot * _U(up.shape[1]) * ranks * _TILE, _ZERO
    for part in range(_U(len(ends))):
        end, origin = _U(ends[part]), (part * ranks, num_low)
        for column in range(begin, end, _TILE):
            width = min(_TILE, end - column)
            if width == _TILE:
                goal = (row * columns + column, columns)
                add_tile(ups, (place, _TILE), ranks, lows, origin, ys, goal, count)
            else:
                _add_edge(y[row : row + count, column:end], ups, place, ranks, lows, origin)
            place += ranks * _TILE
        begin = end


@inner
def _add_edge(y, ups, place, ranks, lows, origin):
    """The same for a tile that is only partly filled: columns beyond y are dropped."""
    whole = np.zeros((y.shape[0], TILE_COLUMNS), np.float32)
    add_tile(ups, (place, _TILE), ranks, lows, origin, whole.reshape(-1), (_ZERO, _TILE), _U(y.shape[0]))
    for row in range(y.shape[0]):
        for column in range(y.shape[1]):
            y[row, column] += whole[row, column]
