"""Products of bfloat16 in VDPBF16PS, which adds two of them to a float32.

A row's sum follows the order of its columns, so that it depends on no other rows and not on threads. The
instruction takes denormal numbers for 0 and does not round like a fused multiply-add.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import inner, intrinsic, next_part, threaded

BLOCK_COLUMNS = 64  # four vectors of 64 bytes: as many as leave six rows' sums in registers
_LANES, PAIR = 16, 4  # floats of a vector, or pairs of bfloat16; bytes of a pair
_BLOCK = BLOCK_COLUMNS * PAIR  # bytes of the weights that a pair of x is multiplied by


class _BFloat(ir.types._BaseFloatType):  # type: ignore[misc] # llvmlite has no such type
    null, intrinsic_name = "0.0", "bf16"

    def __str__(self):
        return "bfloat"

    def format_constant(self, value):
        raise NotImplementedError


_BFloat._create_instance()

_INT, _LONG = ir.IntType(32), ir.IntType(64)
FLOATS, _INTS = ir.VectorType(ir.FloatType(), _LANES), ir.VectorType(_INT, _LANES)
_PAIRS = ir.VectorType(_BFloat(), 2 * _LANES)


def _multiplier(rows, blocks=1):
    """y [rows, columns] = bias + x [rows, pairs] · neighbouring blocks of weights, at these addresses."""

    @intrinsic
    def multiply(typing, weights, bias, x, pairs, y, y_step, columns):
        def generate(context, builder, signature, arguments):
            weights, bias, x, pairs, y, y_step, columns = arguments
            starts = [load(builder, moved(builder, bias, v, 64), FLOATS) for v in range(4 * blocks)]
            begins = [moved(builder, weights, pairs, block * _BLOCK) for block in range(blocks)]
            sources = [moved(builder, x, pairs, row * PAIR) for row in range(rows)]
            sums = sums_of_products(builder, starts, begins, sources, pairs)
            for number, row in enumerate(sums):
                store_row(builder, row, moved(builder, y, y_step, number), columns)
            return context.get_dummy_value()

        return types.void(weights, bias, x, pairs, y, y_step, columns), generate

    return multiply


def sums_of_products(builder, starts, begins, sources, pairs):
    """For each row, starts plus the products of `pairs` of x and of weights at these addresses."""
    sums = [[cgutils.alloca_once_value(builder, start) for start in starts] for _ in sources]
    with cgutils.for_range(builder, pairs) as loop:
        places = [moved(builder, begin, loop.index, _BLOCK) for begin in begins]
        vectors = [load(builder, moved(builder, place, v, 64), _PAIRS) for place in places for v in range(4)]
        for source, row in zip(sources, sums, strict=True):
            pair = load(builder, moved(builder, source, loop.index, PAIR), _INT)
            factor = builder.bitcast(_repeated(builder, pair), _PAIRS)
            for vector, total in zip(vectors, row, strict=True):
                builder.store(_add_products(builder, builder.load(total), factor, vector), total)
    return [[builder.load(total) for total in row] for row in sums]


def moved(builder, address, count, size):
    """address + count * size, of numbers or values."""
    count, size = (_LONG(each) if isinstance(each, int) else each for each in (count, size))
    return builder.add(address, builder.mul(count, size))


def load(builder, address, kind):
    """The vector of `kind` at an address that 4 divides."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)


def _repeated(builder, value):
    first = builder.insert_element(ir.Constant(_INTS, ir.Undefined), value, _INT(0))
    return builder.shuffle_vector(first, first, ir.Constant(_INTS, None))


def _add_products(builder, total, a, b):
    kind = ir.FunctionType(FLOATS, [FLOATS, _PAIRS, _PAIRS])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(function, [total, a, b])


def first_lanes(builder, columns, vector):
    """The mask of lanes of vector number `vector` that are among the first `columns`."""
    lanes = ir.Constant(_INTS, [vector * _LANES + lane for lane in range(_LANES)])
    return builder.icmp_signed("<", lanes, _repeated(builder, builder.trunc(columns, _INT)))


def store_row(builder, row, address, columns):
    """Store the first `columns` floats of the vectors."""
    for number, values in enumerate(row):
        place = builder.inttoptr(moved(builder, address, number, 64), FLOATS.as_pointer())
        arguments = [values, place, _INT(4), first_lanes(builder, columns, number)]
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
        source, target = x + row * pairs * PAIR, y + row * y_step
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
            place = weights + first * pairs * PAIR
            _multiply_wide(place, bias + first * 4, x, pairs, y + first * 4, 0, columns - first)
        else:
            for column in range(first, min(first + step, columns), BLOCK_COLUMNS):
                place, shape = weights + column * pairs * PAIR, (rows, pairs, columns * 4, columns - column)
                _multiply_block(place, bias + column * 4, x, y + column * 4, shape)
        first = next_part(job) * step
