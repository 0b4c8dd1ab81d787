"""The products, in LLVM's vectors. All arrays are flat and contiguous."""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import inner, intrinsic

TILE_COLUMNS = 32  # four registers of AVX2, two of AVX-512

_HAS_MANY_REGISTERS = bool(binding.get_host_cpu_features().get("avx512vl"))  # 32: four rows' sums fit
_U = np.uint64
_TWO, _FOUR = _U(2), _U(4)

_FLOATS = ir.VectorType(ir.FloatType(), TILE_COLUMNS)
_BITS = ir.VectorType(ir.IntType(32), TILE_COLUMNS)
_NARROW_BITS = ir.VectorType(ir.IntType(16), TILE_COLUMNS)


@inner
def multiply(matrix, begin, shape, x, y, count):
    """y [count, columns] += x [count, rows] · the matrix of this shape, in tiles from matrix[begin] on."""
    rows, columns, count = _U(shape[0]), _U(shape[1]), _U(count)
    sizes = (rows, columns)
    in_fours = count - count % _FOUR if _HAS_MANY_REGISTERS else _U(0)
    in_pairs = count - count % _TWO
    for column in range(_U(0), columns, _U(TILE_COLUMNS)):
        tile = _U(begin) + column * rows
        for i in range(_U(0), in_fours, _FOUR):
            _add_four(matrix, tile, sizes, x, i * rows, y, i * columns + column)
        for i in range(in_fours, in_pairs, _TWO):
            _add_two(matrix, tile, sizes, x, i * rows, y, i * columns + column)
        for i in range(in_pairs, count):
            _add_one(matrix, tile, sizes, x, i * rows, y, i * columns + column)


def _adder(count):
    """For so many rows of x, from x[source] on: y[target:] += Σ x[source + r] · tile[r], r < rows.

    `sizes`: rows and columns of the matrix, and so how far apart the rows of x and of y are.
    """

    @intrinsic
    def add(typing, matrix, tile, sizes, x, source, y, target):
        def generate(context, builder, signature, arguments):
            matrix, tile, sizes, x, source, y, target = _opened(context, builder, signature, arguments)
            rows, columns = cgutils.unpack_tuple(builder, sizes, 2)
            sources, targets = [source], [target]
            for _ in range(count - 1):
                sources.append(builder.add(sources[-1], rows))
                targets.append(builder.add(targets[-1], columns))
            _add_products(builder, (matrix, tile, rows), x, sources, y, targets)
            return context.get_dummy_value()

        return types.void(matrix, tile, sizes, x, source, y, target), generate

    return add


_add_one, _add_two, _add_four = _adder(1), _adder(2), _adder(4)


def _opened(context, builder, signature, arguments):
    """The arguments, with pointers in the arrays' places."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, arguments, strict=True)
    ]


def _add_products(builder, tile, x, sources, y, targets):
    weights, begin, rows = tile
    sums = [cgutils.alloca_once_value(builder, _load(builder, y, target)) for target in targets]
    with cgutils.for_range(builder, rows) as loop:
        place = builder.add(begin, builder.mul(loop.index, loop.index.type(TILE_COLUMNS)))
        row = _load(builder, weights, place)
        for source, total in zip(sources, sums, strict=True):
            factor = _repeated(builder, builder.load(builder.gep(x, [builder.add(source, loop.index)])))
            builder.store(_multiply_add(builder, factor, row, builder.load(total)), total)
    for target, total in zip(targets, sums, strict=True):
        _store(builder, builder.load(total), y, target)


def _load(builder, array, place):
    """TILE_COLUMNS floats. Bfloat16's bits are the upper half of float32's."""
    pointer = builder.gep(array, [place])
    if pointer.type.pointee == ir.FloatType():
        return builder.load(builder.bitcast(pointer, _FLOATS.as_pointer()), align=4)
    narrow = builder.load(builder.bitcast(pointer, _NARROW_BITS.as_pointer()), align=2)
    upper_half = ir.Constant(_BITS, [16] * TILE_COLUMNS)
    return builder.bitcast(builder.shl(builder.zext(narrow, _BITS), upper_half), _FLOATS)


def _store(builder, values, array, place):
    pointer = builder.bitcast(builder.gep(array, [place]), _FLOATS.as_pointer())
    builder.store(values, pointer, align=4)


def _repeated(builder, value):
    """The float in all places of a vector."""
    first = builder.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, ir.Constant(_BITS, None))


def _multiply_add(builder, a, b, c):
    """a · b + c, in one instruction where there is one."""
    kind = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{TILE_COLUMNS}f32")
    return builder.call(function, [a, b, c])
