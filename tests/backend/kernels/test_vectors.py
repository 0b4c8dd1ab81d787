"""Emitted instructions touch the lanes that they are told to, and groups of rows are all rows, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba import types

from backend.kernels.compiled import inner
from backend.kernels.vectors import FLOATS, INT, INTS, LANES, LONG, Emitter, constant, emitted


@emitted(types.int64)
def write_groups(emit: Emitter, place: ir.Value, count: ir.Value) -> ir.Value:
    for size, first in emit.row_groups(count):
        emit.write(INT(size), emit.moved(place, first, 4))
    return emit.add(count, LONG(1))


@inner
def groups(found: Any, count: int) -> int:  # noqa: ANN401
    written: int = write_groups(found.ctypes.data, count)
    return written


@pytest.mark.parametrize("count", range(20))
def test_rows_are_taken_in_the_largest_groups_that_are_left(count: int) -> None:
    found = np.zeros(24, np.int32)
    assert groups(found, count) == count + 1
    expected: list[int] = []
    while len(expected) < count:
        size = next(size for size in (6, 4, 2, 1) if size <= count - len(expected))
        expected += [size] + [0] * (size - 1)
    assert found.tolist() == expected + [0] * (24 - count)


@emitted()
def copy_lanes(emit: Emitter, places: Sequence[ir.Value], count: ir.Value) -> None:
    source, target = places
    first, second = (emit.first_lanes(count, begin=begin) for begin in (0, LANES))
    row = [emit.read_lanes(source, first), emit.read_lanes(emit.moved(source, 1, 64), second)]
    emit.write_row(row, target, count)


@inner
def copy(values: Any, found: Any, count: int) -> None:  # noqa: ANN401
    copy_lanes((values.ctypes.data, found.ctypes.data), count)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 31, 32])
def test_lanes_beyond_the_count_are_left_alone(count: int) -> None:
    values, found = np.arange(32, dtype=np.float32), np.full(40, -1, np.float32)
    copy(values, found, count)
    assert found.tolist() == [*range(count), *[-1] * (40 - count)]


@emitted()
def combine(emit: Emitter, floats: ir.Value, ints: ir.Value) -> None:
    factor = emit.repeated(emit.extract_element(emit.read(floats), INT(3)))
    emit.write(emit.multiply_add(factor, emit.read(floats), constant(FLOATS, 0.5)), floats)
    (whole,) = emit.variables([constant(INTS, 2)])
    row = emit.read_row(ints, INTS, 2, step=4)
    emit.store(emit.add(emit.load(whole), emit.sub(row[1], row[0])), whole)
    emit.write(emit.load(whole), ints)


@inner
def run(floats: Any, ints: Any) -> None:  # noqa: ANN401
    combine(floats.ctypes.data, ints.ctypes.data)


def test_vectors_are_read_computed_with_and_written() -> None:
    floats, ints = np.arange(17, dtype=np.float32), np.arange(17, dtype=np.int32) ** 2
    run(floats, ints)
    assert floats.tolist() == [*(3 * number + 0.5 for number in range(16)), 16]
    assert ints.tolist() == [*(2 * number + 3 for number in range(16)), 256]
