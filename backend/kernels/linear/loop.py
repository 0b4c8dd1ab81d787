"""Products of bfloat16 in VDPBF16PS, which adds two of them to a float32.

A row's sum follows the order of its columns, so that it depends on no other rows and not on threads. The
instruction takes denormal numbers for 0 and does not round like a fused multiply-add.
"""

from llvmlite import ir
from numba.core import cgutils

from backend.kernels.compiled import next_part, threaded
from backend.kernels.vectors import FLOATS, INT, LANES, LONG, ROW_COUNTS, emitted

BLOCK_COLUMNS = 64  # four vectors of 64 bytes: as many as leave six rows' sums in registers
UNIT = 4  # bytes of x that are multiplied at once: two bfloat16, or four of int8
VECTORS, _BLOCK = BLOCK_COLUMNS // LANES, BLOCK_COLUMNS * UNIT  # of a unit's weights; bytes of them


class _BFloat(ir.types._BaseFloatType):  # type: ignore[misc] # llvmlite has no such type
    null, intrinsic_name = "0.0", "bf16"

    def __str__(self):
        return "bfloat"

    def format_constant(self, value):
        raise NotImplementedError


_BFloat._create_instance()

_BFLOATS = "x86.avx512bf16.dpbf16ps.512", ir.VectorType(_BFloat(), 2 * LANES)


def sums_of_products(emit, starts, begins, sources, units, dot=_BFLOATS):
    """For each row, starts plus the products of `units` of x and of weights at these addresses.

    `dot`: the instruction and the vectors that it multiplies.
    """
    (name, kind), sums = dot, [emit.variables(starts) for _ in sources]
    with cgutils.for_range(emit, units) as loop:
        places = [emit.moved(begin, loop.index, _BLOCK) for begin in begins]
        vectors = [vector for place in places for vector in emit.read_row(place, kind, VECTORS)]
        for source, row in zip(sources, sums, strict=True):
            unit = emit.read(emit.moved(source, loop.index, UNIT), INT)
            factor = emit.bitcast(emit.repeated(unit), kind)
            for vector, total in zip(vectors, row, strict=True):
                before = emit.load(total)
                emit.store(emit.llvm(name, before.type, before, factor, vector), total)
    return [[emit.load(total) for total in row] for row in sums]


def _multiplier(blocks, sizes):
    """y [rows, columns] = bias + x [rows, pairs] · neighbouring blocks of weights, at these addresses."""

    @emitted()
    def multiply(emit, weights, bias, x, y, shape):
        rows, pairs, y_step, columns = shape
        begins = emit.places(weights, emit.mul(pairs, LONG(_BLOCK)), blocks)
        for count, first in emit.row_groups(rows, sizes):
            starts = emit.read_row(bias, FLOATS, VECTORS * blocks)
            sources = emit.places(x, emit.mul(pairs, LONG(UNIT)), count, first)
            sums = sums_of_products(emit, starts, begins, sources, pairs)
            for row, place in zip(sums, emit.places(y, y_step, count, first), strict=True):
                emit.write_row(row, place, columns)

    return multiply


_WIDE = 4  # blocks at once, for one row: as many sums as hide the instruction's latency
_multiply_block, _multiply_wide = _multiplier(1, ROW_COUNTS), _multiplier(_WIDE, (1,))


@threaded
def multiply(job):
    """y [rows, columns] = bias + x [rows, pairs] · weights [blocks, pairs, 64]; parts are blocks."""
    weights, bias, x, y, rows, pairs, columns = job[1], job[2], job[3], job[4], job[5], job[6], job[7]
    step = _WIDE * BLOCK_COLUMNS if rows == 1 else BLOCK_COLUMNS
    first = next_part(job) * step
    while first < columns:
        if first + step <= columns and rows == 1:
            shape = 1, pairs, 0, columns - first
            _multiply_wide(weights + first * pairs * UNIT, bias + first * 4, x, y + first * 4, shape)
        else:
            for column in range(first, min(first + step, columns), BLOCK_COLUMNS):
                shape, place = (rows, pairs, columns * 4, columns - column), weights + column * pairs * UNIT
                _multiply_block(place, bias + column * 4, x, y + column * 4, shape)
        first = next_part(job) * step
