"""Products with tiled matrices, in LLVM vector instructions. All arrays are flat and contiguous."""

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils

from backend.kernels.compiled import inner
from backend.kernels.vectors import FLOAT, INT, constant, emitted

TILE_COLUMNS = 32  # four registers of AVX2, two of AVX-512

_HAS_MANY_REGISTERS = bool(binding.get_host_cpu_features().get("avx512vl"))  # 32: four rows' sums fit
_U = np.uint64


def adder(width):
    """A function (matrix, place, rows, x, origin, y, goal, count) that adds products of `count` rows of x.

    y[goal] += Σ_r x[origin + r] · matrix[begin + r · step], `width` columns at once. `place` is (begin,
    step); `origin` and `goal` are (offset of the first row, row stride) of x and y; all unsigned.
    """
    sizes = (4, 2, 1) if _HAS_MANY_REGISTERS or width < TILE_COLUMNS else (2, 1)

    @emitted()
    def add_rows(emit, matrix, place, x, origin, y, goal, counts):
        (begin, step), (rows, count) = place, counts
        for size, first in emit.row_groups(count, sizes):
            sources, targets = (emit.places(*each, size, first) for each in (origin, goal))
            sums = emit.variables([_load(emit, y, target, width) for target in targets])
            with cgutils.for_range(emit, rows) as loop:
                row = _load(emit, matrix, emit.moved(begin, loop.index, step), width)
                for source, total in zip(sources, sums, strict=True):
                    factor = emit.repeated(emit.load(emit.gep(x, [emit.add(source, loop.index)])), width)
                    name = f"fmuladd.v{width}f32"  # fused where the processor can
                    emit.store(emit.llvm(name, row.type, factor, row, emit.load(total)), total)
            for target, total in zip(targets, sums, strict=True):
                pointer = emit.bitcast(emit.gep(y, [target]), total.type)
                emit.store(emit.load(total), pointer, align=4)

    def add(matrix, place, rows, x, origin, y, goal, count):
        add_rows(matrix, place, x, origin, y, goal, (rows, count))

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


def _load(emit, array, place, width):
    """A vector of `width` floats; bfloat16 is the upper half of a float32."""
    pointer = emit.gep(array, [place])
    floats, bits = ir.VectorType(FLOAT, width), ir.VectorType(INT, width)
    if pointer.type.pointee == FLOAT:
        return emit.load(emit.bitcast(pointer, floats.as_pointer()), align=4)
    halves = ir.VectorType(ir.IntType(16), width).as_pointer()
    narrow = emit.load(emit.bitcast(pointer, halves), align=2)
    return emit.bitcast(emit.shl(emit.zext(narrow, bits), constant(bits, 16)), floats)
