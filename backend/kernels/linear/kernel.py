"""Products of bfloat16 in VDPBF16PS, which adds two of them to a float32.

A row's sum follows the order of its columns, so that it depends on no other rows and not on threads. The
instruction takes denormal numbers for 0 and does not round like a fused multiply-add.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import inner, intrinsic, next_part, threaded

BLOCK_COLUMNS = 64  # four vectors of 64 bytes: as many as leave six rows' sums in registers
_LANES, _PAIR = 16, 4  # floats of a vector, or pairs of bfloat16; bytes of a pair
_BLOCK = BLOCK_COLUMNS * _PAIR  # bytes of the weights that a pair of x is multiplied by


class _BFloat(ir.types._BaseFloatType):  # type: ignore[misc] # llvmlite has no such type
    null, intrinsic_name = "0.0", "bf16"

    def __str__(self):
        return "bfloat"

    def format_constant(self, value):
        raise NotImplementedError


_BFloat._create_instance()

_INT, _LONG = ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(_INT, _LANES)
_PAIRS = ir.VectorType(_BFloat(), 2 * _LANES)


def _multiplier(rows, blocks=1):
    """y [rows, columns] = bias + x [rows, pairs] · neighbouring blocks of weights, at these addresses."""

    @intrinsic
    def multiply(typing, weights, bias, x, pairs, y, y_step, columns):
        def generate(context, builder, signature, arguments):
            weights, bias, x, pairs, y, y_step, columns = arguments
            starts = [_load(builder, _moved(builder, bias, v, 64), _FLOATS) for v in range(4 * blocks)]
            sums = [[cgutils.alloca_once_value(builder, start) for start in starts] for _ in range(rows)]
            begins = [_moved(builder, weights, pairs, block * _BLOCK) for block in range(blocks)]
            sources = [_moved(builder, x, pairs, row * _PAIR) for row in range(rows)]
            with cgutils.for_range(builder, pairs) as loop:
                places = [_moved(builder, begin, loop.index, _BLOCK) for begin in begins]
                parts = [_moved(builder, place, v, 64) for place in places for v in range(4)]
                vectors = [_load(builder, part, _PAIRS) for part in parts]
                for source, row in zip(sources, sums, strict=True):
                    factor = _repeated(builder, _moved(builder, source, loop.index, _PAIR))
                    for vector, total in zip(vectors, row, strict=True):
                        builder.store(_add_products(builder, builder.load(total), factor, vector), total)
            for number, row in enumerate(sums):
                _store_row(builder, row, _moved(builder, y, y_step, number), columns)
            return context.get_dummy_value()

        return types.void(weights, bias, x, pairs, y, y_step, columns), generate

    return multiply


def _moved(builder, address, count, size):
    count, size = (_LONG(each) if isinstance(each, int) else each for each in (count, size))
    return builder.add(address, builder.mul(count, size))


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _repeated(builder, address):
    """A vector with the pair at `address` in all lanes."""
    pair = _load(builder, address, _INT)
    nothing = ir.Constant(_INTS, ir.Undefined)
    first = builder.insert_element(nothing, pair, _INT(0))
    return builder.bitcast(builder.shuffle_vector(first, nothing, ir.Constant(_INTS, None)), _PAIRS)


def _add_products(builder, total, a, b):
    kind = ir.FunctionType(_FLOATS, [_FLOATS, _PAIRS, _PAIRS])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [total, a, b])


def _store_row(builder, row, address, columns):
    """Store the first `columns` sums."""
    columns = builder.trunc(columns, _INT)
    for number, total in enumerate(row):
        lanes = ir.Constant(_INTS, [number * _LANES + lane for lane in range(_LANES)])
        left = builder.insert_element(ir.Constant(_INTS, ir.Undefined), columns, _INT(0))
        left = builder.shuffle_vector(left, left, ir.Constant(_INTS, None))
        place = builder.inttoptr(_moved(builder, address, number, 4 * _LANES), _FLOATS.as_pointer())
        arguments = [builder.load(total), place, _INT(4), builder.icmp_signed("<", lanes, left)]
        kind = ir.FunctionType(ir.VoidType(), [each.type for each in arguments])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.store.v16f32.p0")
        builder.call(function, arguments)


_multiply_one, _multiply_two, _multiply_four, _multiply_six = (_multiplier(rows) for rows in (1, 2, 4, 6))
_WIDE = 4  # blocks at once, for one row: as many sums as hide the instruction's latency
_multiply_wide = _multiplier(1, _WIDE)


@inner
def _multiply_block(weights, bias, x, y, shape):
    """All rows by one block of weights."""
    rows, pairs, y_step, columns = shape
    row = 0
    while row < rows:
        source, target = x + row * pairs * _PAIR, y + row * y_step
        if rows - row >= 6:
            _multiply_six(weights, bias, source, pairs, target, y_step, columns)
            row += 6
        elif rows - row >= 4:
            _multiply_four(weights, bias, source, pairs, target, y_step, columns)
            row += 4
        elif rows - row >= 2:
            _multiply_two(weights, bias, source, pairs, target, y_step, columns)
            row += 2
        else:
            _multiply_one(weights, bias, source, pairs, target, y_step, columns)
            row += 1


@threaded
def multiply(job):
    """y [rows, columns] = bias + x [rows, pairs] · weights [blocks, pairs, 64]; parts are blocks."""
    weights, bias, x, y, rows, pairs, columns = job[1], job[2], job[3], job[4], job[5], job[6], job[7]
    step = _WIDE * BLOCK_COLUMNS if rows == 1 else BLOCK_COLUMNS
    first = next_part(job) * step
    while first < columns:
        if first + step <= columns and rows == 1:
            place = weights + first * pairs * _PAIR
            _multiply_wide(place, bias + first * 4, x, pairs, y + first * 4, 0, columns - first)
        else:
            for column in range(first, min(first + step, columns), BLOCK_COLUMNS):
                place, shape = weights + column * pairs * _PAIR, (rows, pairs, columns * 4, columns - column)
                _multiply_block(place, bias + column * 4, x, y + column * 4, shape)
        first = next_part(job) * step
