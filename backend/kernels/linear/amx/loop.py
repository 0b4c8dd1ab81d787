"""Products by AMX, which adds 16 rows of x times 16 columns of weights at once, 64 bytes of each.

A row's sums follow the order of its columns and depend on no other rows, nor on threads. Tiles 0 to 3 hold
sums, 4 and 5 rows of x, 6 and 7 weights. A unit is four bytes: two bfloat16 or four int8.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.numpy_support import carray

from backend.kernels.compiled import inner, intrinsic, next_part, pointer_to, threaded

BLOCK_COLUMNS, TILE_ROWS, STEP_UNITS = 32, 16, 16
_MOST_ROWS = 2 * TILE_ROWS  # multiplied at once
_UNIT, _LINE = 4, 64  # bytes; a line is a tile's row
_TILE = TILE_ROWS * _LINE
_BYTE, _SHORT, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(64)
_floats, _ints = pointer_to(types.float32), pointer_to(types.int32)


def _call(builder, name, *arguments):
    """LLVM's instruction of tiles: numbers are tiles; values are an address, and the bytes between lines."""
    values = [_BYTE(each) if isinstance(each, int) else each for each in arguments]
    for place in [n for n, each in enumerate(arguments) if not isinstance(each, int)][:1]:
        values[place] = builder.inttoptr(values[place], _BYTE.as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def _moved(builder, address, count, size):
    """address + count * size, of numbers or values."""
    count, size = (_LONG(each) if isinstance(each, int) else each for each in (count, size))
    return builder.add(address, builder.mul(count, size))


@intrinsic
def _configure(typing, rows):
    """Let the tiles hold this number of rows, of 1 to 32, and forget what they hold."""

    def generate(context, builder, signature, arguments):
        full = _LONG(TILE_ROWS)
        first = builder.select(builder.icmp_signed("<", arguments[0], full), arguments[0], full)
        second = builder.sub(arguments[0], first)
        second = builder.select(builder.icmp_signed(">", second, _LONG(0)), second, full)
        memory = cgutils.alloca_once(builder, ir.ArrayType(_BYTE, 64))
        builder.store(ir.Constant(memory.type.pointee, bytearray([1] + [0] * 63)), memory)
        place = builder.ptrtoint(memory, _LONG)
        for tile, rows in enumerate([first, first, second, second, first, second, full, full]):
            width = builder.inttoptr(builder.add(place, _LONG(16 + 2 * tile)), _SHORT.as_pointer())
            builder.store(_SHORT(_LINE), width)
            height = builder.inttoptr(builder.add(place, _LONG(48 + tile)), _BYTE.as_pointer())
            builder.store(builder.trunc(rows, _BYTE), height)
        _call(builder, "ldtilecfg", place)
        return context.get_dummy_value()

    return types.void(rows), generate


@intrinsic
def _release(typing):
    """Leave nothing to save when the thread is switched."""

    def generate(context, builder, signature, arguments):
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def _multiplier(instruction, num_tiles):
    """y [rows, 32] = start [32] + x [rows, units] · a block [units / 16, 2, 16, 16]; all given by address.

    `shape`: (steps of 16 units, bytes from row to row of x, and of y). `num_tiles`: of rows.
    """

    @intrinsic
    def multiply(typing, block, start, x, y, shape):
        def generate(context, builder, signature, arguments):
            block, start, x, y, shape = arguments
            steps, x_step, y_step = cgutils.unpack_tuple(builder, shape, 3)
            tiles = [(2 * i + v, i, v) for i in range(num_tiles) for v in range(2)]
            for tile, _, v in tiles:
                _call(builder, "tileloadd64", tile, _moved(builder, start, v, _LINE), _LONG(0))
            rows = [_moved(builder, x, i * TILE_ROWS, x_step) for i in range(num_tiles)]
            with cgutils.for_range(builder, steps) as loop:
                for i, row in enumerate(rows):
                    _call(builder, "tileloadd64", 4 + i, _moved(builder, row, loop.index, _LINE), x_step)
                place = _moved(builder, block, loop.index, 2 * _TILE)
                for v in range(2):
                    _call(builder, "tileloadd64", 6 + v, _moved(builder, place, v, _TILE), _LONG(_LINE))
                for tile, i, v in tiles:
                    _call(builder, instruction, tile, 4 + i, 6 + v)
            for tile, i, v in tiles:
                place = _moved(builder, _moved(builder, y, i * TILE_ROWS, y_step), v, _LINE)
                _call(builder, "tilestored64", tile, place, y_step)
            return context.get_dummy_value()

        return types.void(block, start, x, y, shape), generate

    return multiply


def _block_multiplier(instruction):
    """The function that multiplies all rows by a block; it returns for how many rows tiles are configured."""
    narrow, wide = _multiplier(instruction, 1), _multiplier(instruction, 2)

    def multiply_block(block, start, x, y, shape, count, configured):
        for row in range(0, count, _MOST_ROWS):
            rows = min(_MOST_ROWS, count - row)
            if rows != configured:
                _configure(rows)
                configured = rows
            if rows <= TILE_ROWS:
                narrow(block, start, x + row * shape[1], y + row * shape[2], shape)
            else:
                wide(block, start, x + row * shape[1], y + row * shape[2], shape)
        return configured

    multiply_block.__qualname__ += instruction
    return inner(multiply_block)


_multiply_bfloats, _multiply_bytes = _block_multiplier("tdpbf16ps"), _block_multiplier("tdpbusd")


@threaded
def multiply(job):
    """y [rows, columns] = bias + x [rows, units] · weights [columns / 32, units, 32]; parts are blocks."""
    weights, bias, x, y, count, units, columns = job[1], job[2], job[3], job[4], job[5], job[6], job[7]
    shape, configured = (units // STEP_UNITS, units * _UNIT, columns * _UNIT), 0
    begin = next_part(job) * BLOCK_COLUMNS
    while begin < columns:
        place, goal = weights + begin * units * _UNIT, y + begin * _UNIT
        configured = _multiply_bfloats(place, bias + begin * _UNIT, x, goal, shape, count, configured)
        begin = next_part(job) * BLOCK_COLUMNS
    _release()


@threaded
def multiply_int8(job):
    """The same of bytes and int8: y = (starts + sums) · (scales [rows] · factors [columns]) + bias."""
    weights, starts, x, y, count, units, columns = job[1], job[2], job[3], job[4], job[5], job[6], job[7]
    factors, bias = carray(_floats(job[8]), columns), carray(_floats(job[9]), columns)
    scales, floats = carray(_floats(job[10]), count), carray(_floats(y), (count, columns))
    sums = carray(_ints(y), (count, columns))
    shape, configured = (units // STEP_UNITS, units * _UNIT, columns * _UNIT), 0
    begin = next_part(job) * BLOCK_COLUMNS
    while begin < columns:
        place, goal = weights + begin * units * _UNIT, y + begin * _UNIT
        configured = _multiply_bytes(place, starts + begin * _UNIT, x, goal, shape, count, configured)
        for row in range(count):
            for column in range(begin, begin + BLOCK_COLUMNS):
                total = types.float32(sums[row, column])
                floats[row, column] = total * (scales[row] * factors[column]) + bias[column]
        begin = next_part(job) * BLOCK_COLUMNS
    _release()
