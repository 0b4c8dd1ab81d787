"""Small experts on a CPU in one loop, compiled by Numba: what counts for a step's few tokens are the calls.

A woken expert's weights are read once, tile by tile, for all its tokens. A token's sums are the same whatever
lies beside it. Indices are unsigned: so LLVM knows that nothing wraps around, and uses vectors.
"""

import numpy as np
from llvmlite import ir
from numba import types

from backend.kernels.compiled import compiled, inner, intrinsic
from backend.kernels.tiles import TILE_COLUMNS, add_one, add_two, widen

_WORTH_WIDENING = 4  # so many tokens of an expert: then its tiles are written out in float32, one by one

_U = np.uint64
_NOTHING, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


@intrinsic
def _as_float(typing, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@inner
def exponential(x):
    """e^x within 3e-7 of itself, in vectors unlike the C library's: Cephes' expf (Moshier, 1992)."""
    x = min(max(x, np.float32(-87)), np.float32(87))
    power = np.floor(x * np.float32(1.44269504) + _HALF)
    rest = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    series = np.float32(1.9875691e-4)
    series = series * rest + np.float32(1.3981999e-3)
    series = series * rest + np.float32(8.3334519e-3)
    series = series * rest + np.float32(4.1665796e-2)
    series = series * rest + np.float32(1.6666665e-1)
    series = series * rest + _HALF
    series = series * rest * rest + rest + _ONE
    return series * _as_float((np.int32(power) + np.int32(127)) << np.int32(23))


@inner
def _add_products(matrix, begin, shape, block, x, sources, y, targets, count):
    """y[target:] += x[source:][:rows] · the matrix of `shape` that begins at `begin`, `count` times."""
    rows, columns = shape
    for column in range(_U(0), columns, _U(TILE_COLUMNS)):
        tile = begin + column * rows
        if count < _U(_WORTH_WIDENING):
            _add_tile(matrix, tile, rows, x, sources, y, targets, count, column)
        else:
            for place in range(_U(0), rows * _U(TILE_COLUMNS), _U(TILE_COLUMNS)):
                widen(matrix, tile + place, block, place)
            _add_tile(block, _U(0), rows, x, sources, y, targets, count, column)


@inner
def _add_tile(matrix, tile, rows, x, sources, y, targets, count, column):
    in_pairs = count - count % _U(2)
    for i in range(_U(0), in_pairs, _U(2)):
        j = i + _U(1)
        add_two(matrix, tile, rows, x, sources[i], sources[j], y, targets[i] + column, targets[j] + column)
    for i in range(in_pairs, count):
        add_one(matrix, tile, rows, x, sources[i], y, targets[i] + column)


@inner
def _activate(wide, begin, size, share):
    """share · silu(gate) · up, in the gate's place."""
    for i in range(size):
        gate = wide[begin + i]
        wide[begin + i] = share * wide[begin + size + i] * gate / (_ONE + exponential(-gate))


@inner
def _tokens_of(expert, chosen, shares, tokens, own):
    """Which tokens chose the expert, and their shares of it: how many."""
    count = _U(0)
    for token in range(_U(chosen.shape[0])):
        for k in range(_U(chosen.shape[1])):
            if _U(chosen[token, k]) == expert:
                tokens[count], own[count] = token, shares[token, k]
                count += _U(1)
    return count


@compiled
def run_experts(x, chosen, shares, gate_up, down, y):
    """y [T, D] += Σ_k shares[t, k] · expert[chosen[t, k]](x[t]); all contiguous, x and y in float32.

    x [T, D]; chosen and shares [T, k]; gate_up and down tiled, the latter's D columns and the former's 2 I,
    gates before ups, of E experts.
    """
    features, width = _U(x.shape[1]), _U(down.shape[2])
    columns = _U(2) * width
    xs, ys, ups, downs = x.reshape(-1), y.reshape(-1), gate_up.reshape(-1), down.reshape(-1)
    block = np.empty(TILE_COLUMNS * max(x.shape[1], down.shape[2]), np.float32)
    wide = np.empty(x.shape[0] * 2 * down.shape[2], np.float32)
    tokens, own = np.empty(x.shape[0], np.uint64), np.empty(x.shape[0], np.float32)
    at_token, at_wide = np.empty_like(tokens), np.empty_like(tokens)
    for expert in range(_U(gate_up.shape[0])):
        count = _tokens_of(expert, chosen, shares, tokens, own)
        if count == _U(0):
            continue
        for number in range(count):
            at_token[number], at_wide[number] = tokens[number] * features, number * columns
        for i in range(count * columns):
            wide[i] = _NOTHING
        begin = expert * features * columns
        _add_products(ups, begin, (features, columns), block, xs, at_token, wide, at_wide, count)
        for number in range(count):
            _activate(wide, at_wide[number], width, own[number])
        begin = expert * width * features
        _add_products(downs, begin, (width, features), block, wide, at_wide, ys, at_token, count)
