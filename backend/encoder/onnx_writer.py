"""Writes an ONNX model: the few protobuf messages that this graph needs, without the `onnx` package.

Field numbers are those of onnx.proto3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Value = str
"""Name of a tensor in the graph."""

_IR_VERSION = 8
_OPSETS = (("", 17), ("com.microsoft", 1))  # LayerNormalization needs 17
_TENSOR_TYPES = {"float32": 1, "int32": 6, "int64": 7}
_VARINT, _LENGTH, _FIXED32 = 0, 2, 5


class GraphWriter:
    """Collects nodes and weights in order; `finish` returns the file's bytes."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._weights: list[bytes | memoryview] = []
        self._num_values = 0

    def weight(self, array: NDArray[np.float32]) -> Value:
        """Add a constant tensor to the model and return its name."""
        name = self._new_name("w")
        dims = b"".join(_field(1, dim) for dim in array.shape)
        head = dims + _field(2, _TENSOR_TYPES[array.dtype.name]) + _field(8, name.encode())
        data = np.ascontiguousarray(array).data.cast("B")
        head += _varint(9 << 3 | _LENGTH) + _varint(len(data))
        # The data is copied only once, in `finish`: weights dominate the memory at startup.
        self._weights += [_varint(5 << 3 | _LENGTH) + _varint(len(head) + len(data)) + head, data]
        return name

    def op(self, kind: str, *inputs: Value, domain: str = "", **attributes: float) -> Value:
        """Add a node and return its output; attributes are ints or floats by their Python type."""
        output = self._new_name("v")
        node = b"".join(_field(1, name.encode()) for name in inputs)
        node += _field(2, output.encode()) + _field(4, kind.encode())
        node += b"".join(_field(5, _attribute(name, value)) for name, value in attributes.items())
        self._nodes.append(_field(1, node + _field(7, domain.encode())))
        return output

    def finish(
        self, inputs: Iterable[tuple[str, str, tuple[str, ...]]], output: Value, shape: tuple[str | int, ...]
    ) -> bytes:
        """Return the model. `inputs` are (name, dtype, dimension names); `output` is float32 of `shape`."""
        graph = [*self._nodes, _field(2, b"graph"), *self._weights]
        graph += [_field(11, _value_info(name, dtype, dims)) for name, dtype, dims in inputs]
        graph.append(_field(12, _value_info(output, "float32", shape)))
        opsets = [_field(8, _field(1, name.encode()) + _field(2, version)) for name, version in _OPSETS]
        size = sum(map(len, graph))
        return b"".join([_field(1, _IR_VERSION), *opsets, _varint(7 << 3 | _LENGTH) + _varint(size), *graph])

    def _new_name(self, prefix: str) -> str:
        self._num_values += 1
        return f"{prefix}{self._num_values}"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: int | float | bytes) -> bytes:
    """Encode a protobuf field: number and wire type, then the value."""
    if isinstance(value, bytes):
        return _varint(number << 3 | _LENGTH) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    return _varint(number << 3 | _VARINT) + _varint(value)


def _attribute(name: str, value: float) -> bytes:
    is_float = isinstance(value, float)
    return _field(1, name.encode()) + _field(2 if is_float else 3, value) + _field(20, 1 if is_float else 2)


def _value_info(name: str, dtype: str, dims: tuple[str | int, ...]) -> bytes:
    shape = b"".join(
        _field(1, _field(2, dim.encode()) if isinstance(dim, str) else _field(1, dim)) for dim in dims
    )
    tensor = _field(1, _TENSOR_TYPES[dtype]) + _field(2, shape)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))
