"""The products, in LLVM's vectors. All arrays are flat and contiguous; indices are uint64."""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import intrinsic

TILE_COLUMNS = 32  # four registers of AVX2, two of AVX-512

_FLOATS = ir.VectorType(ir.FloatType(), TILE_COLUMNS)
_BITS = ir.VectorType(ir.IntType(32), TILE_COLUMNS)
_NARROW_BITS = ir.VectorType(ir.IntType(16), TILE_COLUMNS)


@intrinsic
def add_one(typing, weights, begin, rows, x, source, y, target):
    """y[target:] += Σ x[source + r] · tile[r], for the tile of so many rows from weights[begin] on."""

    def generate(context, builder, signature, arguments):
        weights, begin, rows, x, source, y, target = _opened(context, builder, signature, arguments)
        _add_products(builder, (weights, begin, rows), x, [source], y, [target])
        return context.get_dummy_value()

    return types.void(weights, begin, rows, x, source, y, target), generate


@intrinsic
def add_two(typing, weights, begin, rows, x, source, other_source, y, target, other_target):
    """The same for two rows of x at once, whose targets differ."""

    def generate(context, builder, signature, arguments):
        opened = _opened(context, builder, signature, arguments)
        weights, begin, rows, x, source, other_source, y, target, other_target = opened
        _add_products(builder, (weights, begin, rows), x, [source, other_source], y, [target, other_target])
        return context.get_dummy_value()

    return types.void(weights, begin, rows, x, source, other_source, y, target, other_target), generate


@intrinsic
def widen(typing, weights, begin, block, target):
    """block[target:] = weights[begin:], TILE_COLUMNS of them in float32."""

    def generate(context, builder, signature, arguments):
        weights, begin, block, target = _opened(context, builder, signature, arguments)
        _store(builder, _load(builder, weights, begin), block, target)
        return context.get_dummy_value()

    return types.void(weights, begin, block, target), generate


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
