"""Products with codes of 4 bits: a table in a register makes a tile of them bfloat16, then as other products.

The tile is one group of one block of columns. A row adds scale · sum of each group in the order of groups: it
does not depend on other rows, nor on threads.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import inner, intrinsic, next_part, threaded
from backend.kernels.linear.loop import (
    BLOCK_COLUMNS,
    FLOATS,
    PAIR,
    first_lanes,
    load,
    moved,
    store_row,
    sums_of_products,
)

MOST_COLUMNS = 128  # of a group: its tile stays in the first cache
_TILE_BYTES = MOST_COLUMNS * BLOCK_COLUMNS * 2
_CODES = BLOCK_COLUMNS  # bytes of a pair of each column

_LONG = ir.IntType(64)
_WORDS, _INTS = ir.VectorType(ir.IntType(16), 32), ir.VectorType(ir.IntType(32), 16)
_BYTES, _HALVES = ir.VectorType(ir.IntType(8), 16), ir.VectorType(ir.HalfType(), 16)


@intrinsic
def _new_tile(typing):
    """The address of memory for a tile, on the stack."""

    def generate(context, builder, signature, arguments):
        memory = cgutils.alloca_once(builder, ir.IntType(8), _TILE_BYTES + 64)
        return builder.and_(builder.add(builder.ptrtoint(memory, _LONG), _LONG(63)), _LONG(-64))

    return types.int64(), generate


@intrinsic
def _decode(typing, codes, pairs, offsets, table, tile):
    """tile [pairs, 64, 2] = table[codes [pairs, 64, 2] + offsets [64]]."""

    def generate(context, builder, signature, arguments):
        codes, pairs, offsets, table, tile = arguments
        twice = ir.Constant(_INTS, [0x10001] * 16)
        parts = [builder.zext(load(builder, moved(builder, offsets, v, 16), _BYTES), _INTS) for v in range(4)]
        added = [builder.bitcast(builder.mul(part, twice), _WORDS) for part in parts]
        table = load(builder, table, _WORDS)
        kind = ir.FunctionType(_WORDS, [_WORDS, _WORDS])
        permute = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.permvar.hi.512")
        with cgutils.for_range(builder, pairs) as loop:
            words = load(builder, moved(builder, codes, loop.index, _CODES), _WORDS)
            goal = moved(builder, tile, loop.index, 4 * _CODES)
            for v in range(4):
                shifted = builder.lshr(words, ir.Constant(_WORDS, [4 * v] * 32))
                places = builder.add(builder.and_(shifted, ir.Constant(_WORDS, [15] * 32)), added[v])
                place = builder.inttoptr(moved(builder, goal, v, 64), _WORDS.as_pointer())
                builder.store(builder.call(permute, [table, places]), place, align=64)
        return context.get_dummy_value()

    return types.void(codes, pairs, offsets, table, tile), generate


def _multiplier(rows):
    """y [rows, columns] = base + scales · (x [rows, pairs] · tile). base, x, y: (address, bytes of a row)."""

    @intrinsic
    def multiply(typing, tile, scales, base, x, y, pairs, columns):
        def generate(context, builder, signature, arguments):
            tile, scales, base, x, y, pairs, columns = arguments
            bases, sources, goals = (
                [moved(builder, first, step, row) for row in range(rows)]
                for first, step in (cgutils.unpack_tuple(builder, each, 2) for each in (base, x, y))
            )
            sums = sums_of_products(builder, [ir.Constant(FLOATS, [0.0] * 16)] * 4, [tile], sources, pairs)
            factors = [
                builder.fpext(load(builder, moved(builder, scales, v, 32), _HALVES), FLOATS) for v in range(4)
            ]
            for row, start, goal in zip(sums, bases, goals, strict=True):
                place = [moved(builder, start, v, 64) for v in range(4)]
                before = [
                    _load_first(builder, at, first_lanes(builder, columns, v)) for v, at in enumerate(place)
                ]
                totals = [_multiply_add(builder, *each) for each in zip(factors, row, before, strict=True)]
                store_row(builder, totals, goal, columns)
            return context.get_dummy_value()

        return types.void(tile, scales, base, x, y, pairs, columns), generate

    return multiply


def _load_first(builder, address, mask):
    arguments = [
        builder.inttoptr(address, FLOATS.as_pointer()),
        ir.IntType(32)(4),
        mask,
        ir.Constant(FLOATS, None),
    ]
    kind = ir.FunctionType(FLOATS, [each.type for each in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.load.v16f32.p0")
    return builder.call(function, arguments)


def _multiply_add(builder, a, b, c):
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.v16f32"), [a, b, c])


_multiply_one, _multiply_two, _multiply_four, _multiply_six = (_multiplier(rows) for rows in (1, 2, 4, 6))


@inner
def _multiply_tile(tile, scales, base, x, y, rows, pairs, columns):
    """All rows by one tile."""
    row = 0
    while row < rows:
        places = (
            (base[0] + row * base[1], base[1]),
            (x[0] + row * x[1], x[1]),
            (y[0] + row * y[1], y[1]),
        )
        if rows - row >= 6:
            _multiply_six(tile, scales, places[0], places[1], places[2], pairs, columns)
            row += 6
        elif rows - row >= 4:
            _multiply_four(tile, scales, places[0], places[1], places[2], pairs, columns)
            row += 4
        elif rows - row >= 2:
            _multiply_two(tile, scales, places[0], places[1], places[2], pairs, columns)
            row += 2
        else:
            _multiply_one(tile, scales, places[0], places[1], places[2], pairs, columns)
            row += 1


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
            source, left = (x + first * PAIR, pairs * PAIR), columns - block * BLOCK_COLUMNS
            _multiply_tile(tile, scales + number * 2 * BLOCK_COLUMNS, base, source, goal, rows, count, left)
            base = goal
        block = next_part(job)
