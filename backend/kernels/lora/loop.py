"""Adapters on a CPU in one loop over rows, compiled by Numba: what counts for a step's rows are the calls.

Each row is computed by itself, whatever lies beside it. Indices are unsigned and matrices flat: so LLVM knows
that nothing wraps around or overlaps, and uses vectors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from backend.kernels.compiled import compiled

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

_U = np.uint64
_ZERO, _ONE, _TWO, _THREE, _FOUR = _U(0), _U(1), _U(2), _U(3), _U(4)

_NOTHING = np.float32(0)


@compiled
def add_rows(y: Floats, x: Floats, down: Floats, up: Floats, slots: Ints, ends: Ints) -> None:
    """y [T, N] += up[slot]ᵀ (down[slot] x), in place, where slots [T] >= 0.

    x [T, K], down [slots, parts * ranks, K], up [slots, ranks, N]: contiguous. Columns of `up` before ends[p]
    belong to part p, which has its own `ranks` rows of `down`: a multiple of four.
    """
    features, columns = _U(x.shape[1]), _U(y.shape[1])
    num_low, ranks = _U(down.shape[1]), _U(up.shape[1])
    xs, ys, downs, ups = x.reshape(-1), y.reshape(-1), down.reshape(-1), up.reshape(-1)
    low = np.empty(num_low, np.float32)
    for row in range(_U(len(slots))):
        if slots[row] < 0:
            continue
        slot = _U(slots[row])
        x0 = row * features
        for r in range(_ZERO, num_low, _FOUR):
            d0 = (slot * num_low + r) * features
            d1, d2, d3 = d0 + features, d0 + _TWO * features, d0 + _THREE * features
            a, b, c, d = _NOTHING, _NOTHING, _NOTHING, _NOTHING
            for k in range(features):
                value = xs[x0 + k]
                a += value * downs[d0 + k]
                b += value * downs[d1 + k]
                c += value * downs[d2 + k]
                d += value * downs[d3 + k]
            low[r], low[r + _ONE], low[r + _TWO], low[r + _THREE] = a, b, c, d
        y0, begin = row * columns, _ZERO
        for part in range(_U(len(ends))):
            end = _U(ends[part])
            for r in range(_ZERO, ranks, _FOUR):
                own = part * ranks + r
                a, b, c, d = low[own], low[own + _ONE], low[own + _TWO], low[own + _THREE]
                u0 = (slot * ranks + r) * columns
                u1, u2, u3 = u0 + columns, u0 + _TWO * columns, u0 + _THREE * columns
                for n in range(begin, end):
                    ys[y0 + n] += a * ups[u0 + n] + b * ups[u1 + n] + c * ups[u2 + n] + d * ups[u3 + n]
            begin = end
