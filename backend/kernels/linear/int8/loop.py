"""Rounding of rows to 8 bits and their products with tiles of int8, by the instruction VPDPBUSD."""

import numpy as np
from llvmlite import ir

from backend.kernels.compiled import compiled, inner, next_part, threaded
from backend.kernels.linear.loop import BLOCK_COLUMNS, UNIT, VECTORS, sums_of_products
from backend.kernels.vectors import FLOAT, FLOATS, INTS, LONG, emitted

ZERO = 128  # of rounded rows, which are unsigned: the instruction multiplies unsigned by signed

_BYTES = "x86.avx512.vpdpbusd.512", ir.VectorType(ir.IntType(8), 64)
_SIGNLESS, _INFINITY, _NAN = np.int32(0x7FFFFFFF), np.int32(0x7F800000), np.int32(0x7FC00000)
_LEAST, _MOST = np.float32(1e-30), np.float32(127)


@inner
def _round_row(x, bits, rounded, scale):
    """x · 127 / its largest magnitude + ZERO as bytes, and what to multiply by; NaN if x has NaN or inf.

    Magnitudes are compared as integers: they sort alike, and NaN is the largest.
    """
    most = np.int32(0)
    for k in range(x.shape[0]):
        most = max(most, bits[k] & _SIGNLESS)
    is_finite = most < _INFINITY
    scale.view(np.int32)[0] = most if is_finite else _NAN
    inverse = np.float32(0)  # of a row of subnormal numbers as well: 1 / those is infinite
    if is_finite and scale[0] > _LEAST:
        inverse = _MOST / scale[0]
    rounded[:] = ZERO
    if is_finite:
        scale[0] /= _MOST
        for k in range(x.shape[0]):
            rounded[k] = np.uint8(np.int32(np.rint(x[k] * inverse)) + np.int32(ZERO))


@compiled
def round_rows(x, rounded, scales):
    """x [T, K] as bytes [T, width] and what their sums are to be multiplied by [T]."""
    bits = x.view(np.int32)
    for row in range(x.shape[0]):
        _round_row(x[row], bits[row], rounded[row], scales[row : row + 1])


@emitted()
def _multiply_block(emit, tile, facts, x, scales, y, shape):
    """y [rows, columns] = (starts + x [rows, units] · tile) · (scales [rows] · factors) + bias.

    `facts`: the addresses of starts, factors and bias [64].
    """
    rows, units, y_step, columns = shape
    for count, first in emit.row_groups(rows):
        starts, factors, bias = (
            emit.read_row(address, kind, VECTORS)
            for address, kind in zip(facts, (INTS, FLOATS, FLOATS), strict=True)
        )
        sources = emit.places(x, emit.mul(units, LONG(UNIT)), count, first)
        sums = sums_of_products(emit, starts, [tile], sources, units, _BYTES)
        own, goals = (emit.places(*each, count, first) for each in ((scales, 4), (y, y_step)))
        for row, place, goal in zip(sums, own, goals, strict=True):
            scale, numbers = emit.read(place, FLOAT), [emit.sitofp(each, FLOATS) for each in row]
            scales_here = [emit.fmul(emit.repeated(scale), factor) for factor in factors]
            found = zip(numbers, scales_here, bias, strict=True)
            emit.write_row([emit.multiply_add(*each) for each in found], goal, columns)


@threaded
def multiply(job):
    """y [T, N] = rounded rows [T, units] · tiles [N / 64, units, 64] · scales [T], [N] + bias [N].

    A part is a tile.
    """
    tiles, starts, factors, bias, x, scales = job[1], job[2], job[3], job[4], job[5], job[6]
    y, count, units, columns = job[7], job[8], job[9], job[10]
    begin = next_part(job) * BLOCK_COLUMNS
    while begin < columns:
        place, shape = begin * 4, (count, units, columns * 4, columns - begin)
        facts = starts + place, factors + place, bias + place
        _multiply_block(tiles + begin * units * UNIT, facts, x, scales, y + place, shape)
        begin = next_part(job) * BLOCK_COLUMNS
