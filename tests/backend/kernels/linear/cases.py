"""Weights of 4 and 8 bits in Triton: odd shapes, groups, zeros; the shapes of Llama-3.1-8B."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch
from torch import Tensor

from backend.kernels.linear import kernel
from backend.kernels.linear.w4a16 import DeviceInt4Weight
from backend.kernels.linear.w8 import FEW_ROWS, Device8BitWeight
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value


@dataclass(frozen=True)
class Shape:
    """A weight [columns, features] and the rows that it multiplies."""

    rows: int
    columns: int = 70
    features: int = 256
    group: int = 128
    is_symmetric: bool = True
    is_ordered: bool = False
    has_bias: bool = False


def product(shape: Shape, device: str = "cpu") -> tuple[DeviceInt4Weight, Tensor, Tensor | None]:
    """The weight in its layout, the same in float64, and the bias."""
    groups = -(-shape.features // shape.group)
    values = torch.randint(-8, 8, (shape.columns, shape.features), dtype=torch.int8)
    scales = torch.rand(shape.columns, groups) + 0.5
    zeros = None if shape.is_symmetric else torch.randint(-8, 8, (shape.columns, groups), dtype=torch.int8)
    order = torch.randperm(shape.features) if shape.is_ordered else None
    bias = torch.randn(shape.columns) * 50 if shape.has_bias else None
    by_column = torch.arange(shape.features) // shape.group
    dense = values.double() if zeros is None else values.double() - zeros[:, by_column]
    dense *= scales[:, by_column]
    if order is not None:
        dense = torch.empty_like(dense).index_copy_(1, order, dense)
    moved = [None if each is None else each.to(device) for each in (values, scales, zeros, bias, order)]
    return DeviceInt4Weight(*moved[:3], shape.group, *moved[3:]), dense, bias


@dataclass(frozen=True)
class ByteShape:
    """The same of 8 bits."""

    rows: int
    columns: int = 70
    features: int = 256
    block: tuple[int, int] = (128, 128)
    dtype: torch.dtype = torch.float8_e4m3fn
    has_bias: bool = False
    rounds_inputs: bool = False
    is_unknown: bool = False  # float8 to the GPU


def byte_product(shape: ByteShape, device: str = "cpu") -> tuple[Device8BitWeight, Tensor, Tensor | None]:
    """The weight in its layout, the same in float64, and the bias."""
    (height, width), size = shape.block, (shape.columns, shape.features)
    bits = torch.randint(-128, 128, size, dtype=torch.int8)
    if shape.dtype is torch.float8_e4m3fn:
        bits = torch.where(bits & 127 == 127, 0, bits)  # not a number
    values = bits.view(shape.dtype)
    scales = torch.rand(-(-shape.columns // height), -(-shape.features // width)) + 0.5
    by_row, by_column = (torch.arange(count) // each for count, each in zip(size, shape.block, strict=True))
    dense = values.double() * scales.double()[by_row[:, None], by_column]
    bias = torch.randn(shape.columns) * 50 if shape.has_bias else None
    moved = None if bias is None else bias.to(device)
    parts = values.to(device), scales.to(device), shape.block, moved
    return Device8BitWeight(*parts, rounds_inputs=shape.rounds_inputs), dense, bias


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Each 128 columns of a row in float8 or int8."""
    parts = []
    for part in x.float().split(128, 1):
        largest = 448.0 if dtype is torch.float8_e4m3fn else 127.0
        scale = (part.abs().amax(1, keepdim=True) / largest).clamp_min(1e-30)
        numbers = part / scale
        codes = numbers.to(dtype) if dtype is torch.float8_e4m3fn else numbers.round()
        parts.append(codes.double() * scale.double())
    return torch.cat(parts, 1)


def byte_value(shape: ByteShape, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    weight, dense, bias = byte_product(shape, device)
    x = torch.randn(shape.rows, shape.features).to(dtype)
    exact = (
        rounded(x, shape.dtype)
        if shape.rounds_inputs and not shape.is_unknown and shape.rows > FEW_ROWS
        else None
    )
    with patch.object(kernel, "can_round", lambda _: False) if shape.is_unknown else nullcontext():
        return _compared(weight, dense, bias, x, device, exact)


def value(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    weight, dense, bias = product(shape, device)
    return _compared(weight, dense, bias, torch.randn(shape.rows, shape.features).to(dtype), device)


def _compared(
    weight: DeviceInt4Weight | Device8BitWeight,
    dense: Tensor,
    bias: Tensor | None,
    x: Tensor,
    device: str,
    inputs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The product, and that of `inputs` in its place in float64."""
    if weight.bias is not None and bias is not None:
        weight.bias, bias = weight.bias.to(x.dtype), bias.to(x.dtype).double()
    exact = (x.double() if inputs is None else inputs) @ dense.T
    return weight(x.to(device)), (exact if bias is None else exact + bias).to(device)


def launched(columns: int, features: int, rows: int, dtype: torch.dtype) -> Tensor:
    values = torch.zeros(columns, features, dtype=torch.int8)
    weight = DeviceInt4Weight(values, torch.ones(columns, features // 128), None, 128, None)
    return weight(torch.zeros(rows, features, dtype=dtype))


def byte_launched(stored: torch.dtype, columns: int, features: int, rows: int, dtype: torch.dtype) -> Tensor:
    values = torch.zeros(columns, features, dtype=stored)
    scales = torch.ones(columns // 128, features // 128)
    weight = Device8BitWeight(values, scales, (128, 128), None, rounds_inputs=rows > 128)
    return weight(torch.zeros(rows, features, dtype=dtype))


SHAPES = {
    "one row": Shape(1, columns=64, features=1024),
    "2 rows, zeros": Shape(2, is_symmetric=False),
    "5 rows, groups of 32": Shape(5, group=32, is_symmetric=False),
    "17 rows, groups of 64, a bias": Shape(17, group=64, has_bias=True),
    "64 rows": Shape(64, is_symmetric=False, has_bias=True),
    "by row, no whole unit": Shape(5, columns=33, features=90, group=90, is_symmetric=False),
    "no whole group": Shape(3, columns=65, features=300, group=128),
    "half a unit": Shape(2, columns=16, features=96, group=32, is_symmetric=False),
    "another order": Shape(3, is_ordered=True),
    "dequantised": Shape(65, features=90, group=90, is_symmetric=False, is_ordered=True),
}
BYTE_SHAPES = {
    "float8, one row": ByteShape(1, columns=64, features=1024),
    "float8, 5 rows, edges, a bias": ByteShape(5, columns=150, features=300, has_bias=True),
    "float8 by row": ByteShape(17, columns=33, features=90, block=(1, 90)),
    "float8, 64 rows": ByteShape(64, columns=130, block=(128, 256)),
    "float8 of bits": ByteShape(5, columns=33, features=300, is_unknown=True),
    "float8 of bits, dequantised": ByteShape(
        65, columns=33, features=300, rounds_inputs=True, is_unknown=True
    ),
    "float8, dequantised": ByteShape(65, columns=130, features=300, has_bias=True),
    "float8, rounded, 65 rows, a bias": ByteShape(
        65, columns=130, features=1300, has_bias=True, rounds_inputs=True
    ),
    "float8, rounded, 300 rows": ByteShape(300, features=300, has_bias=True, rounds_inputs=True),
    "int8, rounded": ByteShape(80, 33, 90, (1, 90), torch.int8, has_bias=True, rounds_inputs=True),
    "int8 by row": ByteShape(3, features=136, block=(1, 136), dtype=torch.int8),
    "int8 in groups, a bias": ByteShape(2, block=(1, 128), dtype=torch.int8, has_bias=True),
}
CASES = Cases(
    [
        *(Value(name, partial(value, shape)) for name, shape in SHAPES.items()),
        *(Value(name, partial(byte_value, shape)) for name, shape in BYTE_SHAPES.items()),
    ],
    [
        Launch(
            "int4 decode",
            partial(launched, 4096, 4096, 8),
            ["_multiply_int4"],
            dtypes=COMPILED,
        ),
        Launch("int4 dequantised", partial(launched, 1024, 1024, 128)),
        *(
            Launch(
                f"{name} decode",
                partial(byte_launched, stored, 4096, 4096, 8),
                ["_multiply_bytes"],
                dtypes=COMPILED,
            )
            for name, stored in (("float8", torch.float8_e4m3fn), ("int8", torch.int8))
        ),
        *(
            Launch(
                f"{name} rounded, {rows} rows",
                partial(byte_launched, stored, 4096, 4096, rows),
                ["_multiply_rounded"],
                is_large=True,
            )
            for name, stored in (("float8", torch.float8_e4m3fn), ("int8", torch.int8))
            for rows in (256, 2048)
        ),
        Launch("float8 dequantised", partial(byte_launched, torch.float8_e4m3fn, 1024, 1024, 128)),
    ],
)
