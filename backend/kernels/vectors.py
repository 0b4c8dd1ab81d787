"""LLVM's vector instructions, for CPU loops to emit. Addresses are numbers of 64 bits, divisible by 2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from backend.kernels.compiled import intrinsic

LANES = 16  # numbers of 32 bits that fit into a vector of 64 bytes
VECTOR_BYTES = 4 * LANES

FLOAT, INT, LONG = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLOATS, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(INT, LANES)

ROW_COUNTS = (6, 4, 2, 1)
"""Rows to multiply at once: six rows' sums fit into the registers of AVX-512 beside what is multiplied."""


def constant(kind: ir.Type, value: float) -> ir.Constant:
    """A vector of `kind` with the number in all lanes."""
    return ir.Constant(kind, [value] * kind.count)


class Emitter(ir.IRBuilder):  # type: ignore[misc] # llvmlite has no types
    """A builder of instructions that knows addresses and vectors."""

    def moved(self, address: ir.Value, count: ir.Value | int, size: ir.Value | int = 1) -> ir.Value:
        """address + count * size."""
        count, size = (LONG(each) if isinstance(each, int) else each for each in (count, size))
        return self.add(address, self.mul(count, size))

    def places(
        self, address: ir.Value, step: ir.Value | int, count: int, first: ir.Value | int = 0
    ) -> list[ir.Value]:
        """Addresses of `count` rows from number `first` on."""
        begin = self.moved(address, first, step)
        return [self.moved(begin, number, step) for number in range(count)]

    def read(self, address: ir.Value, kind: ir.Type = FLOATS) -> ir.Value:
        """The value of `kind` at an address."""
        return self.load(self.inttoptr(address, kind.as_pointer()), align=2)

    def read_row(
        self, address: ir.Value, kind: ir.Type, count: int, step: int = VECTOR_BYTES
    ) -> list[ir.Value]:
        """`count` values of `kind`, each `step` bytes behind the one before it."""
        return [self.read(place, kind) for place in self.places(address, step, count)]

    def write(self, value: ir.Value, address: ir.Value) -> None:
        """Store a value at an address."""
        self.store(value, self.inttoptr(address, value.type.as_pointer()), align=2)

    def llvm(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """What LLVM's function "llvm.name" returns."""
        kind = ir.FunctionType(result, [each.type for each in arguments])
        return self.call(cgutils.get_or_insert_function(self.module, kind, f"llvm.{name}"), arguments)

    def repeated(self, value: ir.Value, lanes: int = LANES) -> ir.Value:
        """A vector with the value in all lanes."""
        nothing = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.insert_element(nothing, value, INT(0))
        return self.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(INT, lanes), None))

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a · b + c of vectors of floats, rounded once."""
        return self.llvm(f"fma.v{a.type.count}f32", a.type, a, b, c)

    def first_lanes(self, count: ir.Value, lanes: int = LANES, begin: int = 0) -> ir.Value:
        """The mask of lanes `begin` and up that are among the first `count`."""
        numbers = ir.Constant(ir.VectorType(INT, lanes), list(range(begin, begin + lanes)))
        return self.icmp_signed("<", numbers, self.repeated(self.trunc(count, INT), lanes))

    def read_lanes(self, address: ir.Value, mask: ir.Value, kind: ir.Type = FLOATS) -> ir.Value:
        """The lanes of the mask at an address; the others are 0 and are not read."""
        name = f"masked.load.v{kind.count}{'f' if kind.element == FLOAT else 'i'}32.p0"
        pointer = self.inttoptr(address, kind.as_pointer())
        return self.llvm(name, kind, pointer, INT(2), mask, ir.Constant(kind, None))

    def write_row(self, row: Sequence[ir.Value], address: ir.Value, count: ir.Value) -> None:
        """Store the first `count` floats of the vectors."""
        for number, values in enumerate(row):
            pointer = self.inttoptr(self.moved(address, number, VECTOR_BYTES), FLOATS.as_pointer())
            mask = self.first_lanes(count, begin=number * LANES)
            self.llvm("masked.store.v16f32.p0", ir.VoidType(), values, pointer, INT(2), mask)

    def variables(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Variables that hold the values at first."""
        return [cgutils.alloca_once_value(self, value) for value in values]

    def row_groups(
        self, count: ir.Value, sizes: Sequence[int] = ROW_COUNTS
    ) -> Iterator[tuple[int, ir.Value]]:
        """Emit the body of a `for` for `count` rows, in groups as large as are left: (size, first row)."""
        begin = LONG(0)
        for size in sizes:
            end = self.sub(count, self.urem(self.sub(count, begin), LONG(size)))
            with cgutils.for_range_slice(self, begin, end, LONG(size)) as (row, _):
                yield size, row
            begin = end


def emitted(
    result: types.Type = types.void,
) -> Callable[[Callable[..., ir.Value | None]], Callable[..., Any]]:
    """Let compiled functions call a function (emitter, *arguments) that emits instructions.

    A tuple among the arguments comes as a list of values, an array as the pointer to its first element. What
    is returned is a value of type `result`.
    """

    def decorate(function: Callable[..., ir.Value | None]) -> Callable[..., Any]:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> ir.Value:  # noqa: ANN401
            opened = [_opened(context, builder, *each) for each in zip(signature.args, values, strict=True)]
            emitter = Emitter(builder.block)
            found = function(emitter, *opened)
            builder.position_at_end(emitter.block)
            return context.get_dummy_value() if found is None else found

        @functools.wraps(function)  # Numba reads the parameters from it
        def typed(typing: object, *kinds: types.Type) -> tuple[object, Callable[..., ir.Value]]:
            return result(*kinds), generate

        return intrinsic(typed)

    return decorate


def _opened(context: Any, builder: ir.IRBuilder, kind: types.Type, value: ir.Value) -> Any:  # noqa: ANN401
    if isinstance(kind, types.Array):
        return context.make_array(kind)(context, builder, value).data
    return cgutils.unpack_tuple(builder, value) if isinstance(kind, types.BaseTuple) else value
