"""Products with tiled matrices, in LLVM vector instructions. All arrays are flat and contiguous."""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import inner, intrinsic

TILE_COLUMNS = 32  # four registers of AVX2, two of AVX-512

_HAS_MANY_REGISTERS = bool(binding.get_host_cpu_features().get("avx512vl"))  # 32: four rows' sums fit
_U = np.uint64
_TWO, _FOUR = _U(2), _U(4)


def _adder(count, width):
    """y[target] += Σ_r x[source + r] · matrix[begin + r · step] for `count` rows, `width` columns at once.

    `place` is (begin, step); `origin` and `goal` are (first row, row stride) of x and y.
    """

    @intrinsic
    def add(typing, matrix, place, rows, x, origin, y, goal):
        def generate(context, builder, signature, arguments):
            matrix, place, rows, x, origin, y, goal = _opened(context, builder, signature, arguments)
            sources, targets = (_places(builder, each, count) for each in (origin, goal))
            begin, step = cgutils.unpack_tuple(builder, place, 2)
            _add_products(builder, (matrix, begin, step, rows, width), x, sources, y, targets)
            return context.get_dummy_value()

        return types.void(matrix, place, rows, x, origin, y, goal), generate

    return add


def adder(width):
    """A function (matrix, place, rows, x, origin, y, goal, count) that adds products of `count` rows of x.

    y[goal] += Σ_r x[origin + r] · matrix[begin + r · step], `width` columns at once. `place` is (begin,
    step); `origin` and `goal` are (offset of the first row, row stride) of x and y; all unsigned.
    """
    add_one, add_two, add_four = (_adder(count, width) for count in (1, 2, 4))
    fours_fit = _HAS_MANY_REGISTERS or width < TILE_COLUMNS

    def add(matrix, place, rows, x, origin, y, goal, count):
        (x0, x_step), (y0, y_step) = origin, goal
        in_fours = count - count % _FOUR if fours_fit else _U(0)
        in_pairs = count - count % _TWO
        for i in range(_U(0), in_fours, _FOUR):
            add_four(matrix, place, rows, x, (x0 + i * x_step, x_step), y, (y0 + i * y_step, y_step))
        for i in range(in_fours, in_pairs, _TWO):
            add_two(matrix, place, rows, x, (x0 + i * x_step, x_step), y, (y0 + i * y_step, y_step))
        for i in range(in_pairs, count):
            add_one(matrix, place, rows, x, (x0 + i * x_step, x_step), y, (y0 + i * y_step, y_step))

    # Numba names machine code by qualified name, argument types and a number that counts up per process. Code
    # cached by different processes is linked by these names: one name for two widths would mix them up.
    add.__qualname__ = f"add_{width}_columns"
    return inner(add)


add_tile = adder(TILE_COLUMNS)


@inner
def multiply(matrix, begin, shape, x, y, count):
    """y [count, columns] += x [count, rows] · the tiled matrix of `shape` that starts at matrix[begin]."""
    rows, columns, count = _U(shape[0]), _U(shape[1]), _U(count)
    for column in range(_U(0), columns, _U(TILE_COLUMNS)):
        place = (_U(begin) + column * rows, _U(TILE_COLUMNS))
        add_tile(matrix, place, rows, x, (_U(0), rows), y, (column, columns), count)


@inner
def product(matrices, number, x):
    """x [n, K] · matrix `number` of tiled float matrices: [n, columns of the tiles]."""
    columns = matrices.shape[1] * matrices.shape[3]
    y = np.zeros((x.shape[0], columns), np.float32)
    begin = number * x.shape[1] * columns
    multiply(matrices.reshape(-1), begin, (x.shape[1], columns), x.reshape(-1), y.reshape(-1), x.shape[0])
    return y


@inner
def add_product(matrices, number, x, y):
    """y [n, N] += x · matrix, without the columns that fill the last tile."""
    found = product(matrices, number, x)
    for row in range(y.shape[0]):
        for k in range(y.shape[1]):
            y[row, k] += found[row, k]


def _opened(context, builder, signature, arguments):
    """The arguments, with arrays replaced by pointers."""
    return [
        context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
        for kind, value in zip(signature.args, arguments, strict=True)
    ]


def _places(builder, first_and_step, count):
    """The offsets of `count` rows."""
    first, step = cgutils.unpack_tuple(builder, first_and_step, 2)
    places = [first]
    for _ in range(count - 1):
        places.append(builder.add(places[-1], step))
    return places


def _add_products(builder, weights, x, sources, y, targets):
    matrix, begin, step, rows, width = weights
    sums = [cgutils.alloca_once_value(builder, _load(builder, y, target, width)) for target in targets]
    with cgutils.for_range(builder, rows) as loop:
        row = _load(builder, matrix, builder.add(begin, builder.mul(loop.index, step)), width)
        for source, total in zip(sources, sums, strict=True):
            value = builder.load(builder.gep(x, [builder.add(source, loop.index)]))
            factor = _repeated(builder, value, width)
            builder.store(_multiply_add(builder, factor, row, builder.load(total)), total)
    for target, total in zip(targets, sums, strict=True):
        _store(builder, builder.load(total), y, target)


def _load(builder, array, place, width):
    """A vector of `width` floats; bfloat16 is the upper half of a float32."""
    pointer = builder.gep(array, [place])
    floats, bits = ir.VectorType(ir.FloatType(), width), ir.VectorType(ir.IntType(32), width)
    if pointer.type.pointee == ir.FloatType():
        return builder.load(builder.bitcast(pointer, floats.as_pointer()), align=4)
    narrow_bits = ir.VectorType(ir.IntType(16), width)
    narrow = builder.load(builder.bitcast(pointer, narrow_bits.as_pointer()), align=2)
    upper_half = ir.Constant(bits, [16] * width)
    return builder.bitcast(builder.shl(builder.zext(narrow, bits), upper_half), floats)


def _store(builder, values, array, place):
    pointer = builder.bitcast(builder.gep(array, [place]), values.type.as_pointer())
    builder.store(values, pointer, align=4)


def _repeated(builder, value, width):
    """A vector with the float in all lanes."""
    nothing = ir.Constant(ir.VectorType(ir.FloatType(), width), ir.Undefined)
    first = builder.insert_element(nothing, value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), width), None))


def _multiply_add(builder, a, b, c):
    """a · b + c, fused where the processor can."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{a.type.count}f32")
    return builder.call(function, [a, b, c])
