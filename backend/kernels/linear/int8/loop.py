"""Rounding of rows to 8 bits and their products with tiles of int8, by the instruction VPDPBUSD."""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.numpy_support import carray

from backend.kernels.compiled import compiled, inner, intrinsic, next_part, threaded

TILE_COLUMNS = 64  # four vectors: the sums of six rows fit into the registers beside them
ZERO = 128  # of rounded rows, which are unsigned: the instruction multiplies unsigned by signed

_INT, _LONG = ir.IntType(32), ir.IntType(64)
_INTS, _BYTES = ir.VectorType(_INT, 16), ir.VectorType(ir.IntType(8), 64)
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


def _adder(rows):
    """sums [rows, 64] = starts [64] + x [rows, width] · tile [width / 4, 64, 4]; all given by address."""

    @intrinsic
    def add(typing, tile, starts, x, width, sums):
        def generate(context, builder, signature, arguments):
            tile, starts, x, width, sums = arguments
            kind = ir.FunctionType(_INTS, [_INTS, _BYTES, _BYTES])
            dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
            cells = [[cgutils.alloca_once(builder, _INTS) for _ in range(4)] for _ in range(rows)]
            for vector in range(4):
                start = builder.load(_place(builder, starts, 64 * vector, _INTS), align=4)
                for row in cells:
                    builder.store(start, row[vector])
            with cgutils.for_range(builder, builder.lshr(width, _LONG(2))) as loop:
                line = builder.add(tile, builder.shl(loop.index, _LONG(8)))
                weights = [builder.load(_place(builder, line, 64 * i, _BYTES), align=4) for i in range(4)]
                source = builder.add(x, builder.shl(loop.index, _LONG(2)))
                for row in cells:
                    quad = _repeated(builder, builder.load(_place(builder, source, 0, _INT), align=4))
                    for cell, weight in zip(row, weights, strict=True):
                        builder.store(builder.call(dot, [builder.load(cell), quad, weight]), cell)
                    source = builder.add(source, width)
            for i, cell in enumerate(cell for row in cells for cell in row):
                builder.store(builder.load(cell), _place(builder, sums, 64 * i, _INTS), align=4)
            return context.get_dummy_value()

        return types.void(tile, starts, x, width, sums), generate

    return add


def _place(builder, base, offset, kind):
    return builder.inttoptr(builder.add(base, _LONG(offset)), kind.as_pointer())


def _repeated(builder, quad):
    """64 bytes from 4."""
    first = builder.insert_element(ir.Constant(_INTS, ir.Undefined), quad, _INT(0))
    return builder.bitcast(builder.shuffle_vector(first, first, ir.Constant(_INTS, None)), _BYTES)


_one, _two, _four, _six = (_adder(rows) for rows in (1, 2, 4, 6))


@intrinsic
def _floats(typing, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(address), generate


@compiled
def round_rows(x, rounded, scales):
    """x [T, K] as bytes [T, width] and what their sums are to be multiplied by [T]."""
    bits = x.view(np.int32)
    for row in range(x.shape[0]):
        _round_row(x[row], bits[row], rounded[row], scales[row : row + 1])


@threaded
def multiply(job):
    """y [T, N] = rounded rows [T, width] · tiles [N / 64, width / 4, 64, 4] · scales [T], [N] + bias [N].

    A part is a tile.
    """
    tiles, starts, x, count, width = job[1], job[2], job[5], job[7], job[8]
    columns = job[9]
    column_scales, biases = carray(_floats(job[3]), columns), carray(_floats(job[4]), columns)
    row_scales, y = carray(_floats(job[6]), count), carray(_floats(job[10]), (count, columns))
    sums = np.empty((6, TILE_COLUMNS), np.int32)
    part = next_part(job)
    while part * TILE_COLUMNS < columns:
        begin = part * TILE_COLUMNS
        end = min(begin + TILE_COLUMNS, columns)
        factors, offsets = column_scales[begin:end], biases[begin:end]
        place = tiles + begin * width, starts + 4 * begin
        row = 0
        while row < count:
            source, left = x + row * width, count - row
            if left >= 6:
                size = 6
                _six(*place, source, width, sums.ctypes.data)
            elif left >= 4:
                size = 4
                _four(*place, source, width, sums.ctypes.data)
            elif left >= 2:
                size = 2
                _two(*place, source, width, sums.ctypes.data)
            else:
                size = 1
                _one(*place, source, width, sums.ctypes.data)
            for i in range(size):
                target, own, scale = y[row + i, begin:end], sums[i], row_scales[row + i]
                for k in range(target.shape[0]):
                    target[k] = np.float32(own[k]) * (scale * factors[k]) + offsets[k]
            row += size
        part = next_part(job)
