"""Products with codes of 4 bits: a table in a register makes a tile of them bfloat16, then as other products.

The tile is one group of one block of columns. A row adds scale · sum of each group in the order of groups: it
does not depend on other rows, nor on threads.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import next_part, threaded
from backend.kernels.linear.loop import BLOCK_COLUMNS, UNIT, VECTORS, sums_of_products
from backend.kernels.vectors import FLOATS, INTS, LANES, LONG, VECTOR_BYTES, constant, emitted

MOST_COLUMNS = 128  # of a group: its tile stays in the first cache
_TILE_BYTES = MOST_COLUMNS * BLOCK_COLUMNS * 2
_CODES = BLOCK_COLUMNS  # bytes of a pair of each column

_WORDS = ir.VectorType(ir.IntType(16), 2 * LANES)
_BYTES, _HALVES = ir.VectorType(ir.IntType(8), LANES), ir.VectorType(ir.HalfType(), LANES)


@emitted(types.int64)
def _new_tile(emit):
    """The address of memory for a tile, on the stack."""
    memory = cgutils.alloca_once(emit, ir.IntType(8), _TILE_BYTES + 64)
    return emit.and_(emit.add(emit.ptrtoint(memory, LONG), LONG(63)), LONG(-64))


@emitted()
def _decode(emit, codes, pairs, offsets, table, tile):
    """tile [pairs, 64, 2] = table[codes [pairs, 64, 2] + offsets [64]]."""
    twice, table = constant(INTS, 0x10001), emit.read(table, _WORDS)
    parts = [emit.zext(each, INTS) for each in emit.read_row(offsets, _BYTES, VECTORS, LANES)]
    added = [emit.bitcast(emit.mul(part, twice), _WORDS) for part in parts]
    with cgutils.for_range(emit, pairs) as loop:
        words = emit.read(emit.moved(codes, loop.index, _CODES), _WORDS)
        goal = emit.moved(tile, loop.index, 4 * _CODES)
        for v in range(VECTORS):
            shifted = emit.lshr(words, constant(_WORDS, 4 * v))
            places = emit.add(emit.and_(shifted, constant(_WORDS, 15)), added[v])
            found = emit.llvm("x86.avx512.permvar.hi.512", _WORDS, table, places)
            emit.write(found, emit.moved(goal, v, VECTOR_BYTES))


@emitted()
def _multiply_tile(emit, tile, scales, base, x, y, shape):
    """y [rows, columns] = base + scales · (x [rows, pairs] · tile). base, x, y: (address, bytes of a row)."""
    (rows, pairs, columns), zeros = shape, [constant(FLOATS, 0.0)] * VECTORS
    masks = [emit.first_lanes(columns, begin=v * LANES) for v in range(VECTORS)]
    for count, first in emit.row_groups(rows):
        bases, sources, goals = (emit.places(*each, count, first) for each in (base, x, y))
        sums = sums_of_products(emit, zeros, [tile], sources, pairs)
        halves = emit.read_row(scales, _HALVES, VECTORS, 2 * LANES)
        factors = [emit.fpext(each, FLOATS) for each in halves]
        for row, start, goal in zip(sums, bases, goals, strict=True):
            places = emit.places(start, VECTOR_BYTES, VECTORS)
            before = [emit.read_lanes(*each) for each in zip(places, masks, strict=True)]
            totals = [emit.multiply_add(*each) for each in zip(factors, row, before, strict=True)]
            emit.write_row(totals, goal, columns)


@threaded
def multiply(job):
    """y [rows, columns] = bias + x [rows, pairs] · W; parts are blocks of 64 columns.

    codes [blocks, pairs, 64, 2] of 4 bits, scales fp16 and offsets bytes [blocks, groups, 64]; with an
    `offset_step` of 0 all groups have the first offsets.
    """
    codes, scales, offsets, offset_step, table, bias = job[1], job[2], job[3], job[4], job[5], job[6]
    x, y, rows, pairs, columns, group_pairs = job[7], job[8], job[9], job[10], job[11], job[12]
    groups = (pairs + group_pairs - 1) // group_pairs
    tile = _new_tile()
    block = next_part(job)
    while block * BLOCK_COLUMNS < columns:
        place = block * BLOCK_COLUMNS * 4
        goal, base = (y + place, columns * 4), (bias + place, 0)
        for group in range(groups):
            first, number = group * group_pairs, block * groups + group
            count = min(group_pairs, pairs - first)
            _decode(
                codes + (block * pairs + first) * _CODES, count, offsets + number * offset_step, table, tile
            )
            source, shape = (x + first * UNIT, pairs * UNIT), (rows, count, columns - block * BLOCK_COLUMNS)
            _multiply_tile(tile, scales + number * 2 * BLOCK_COLUMNS, base, source, goal, shape)
            base = goal
        block = next_part(job)
