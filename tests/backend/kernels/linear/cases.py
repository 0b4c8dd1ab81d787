"""Weights of 4 bits in Triton: odd shapes, groups, zeros; the shapes of Llama-3.1-8B."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backend.kernels.linear.w4a16 import DeviceInt4Weight
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


def value(shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    weight, dense, bias = product(shape, device)
    x = torch.randn(shape.rows, shape.features).to(dtype)
    if bias is not None:
        weight.bias, bias = weight.bias.to(dtype), bias.to(dtype).double()
    exact = x.double() @ dense.T
    return weight(x.to(device)), (exact if bias is None else exact + bias).to(device)


def launched(columns: int, features: int, rows: int, dtype: torch.dtype) -> Tensor:
    values = torch.zeros(columns, features, dtype=torch.int8)
    weight = DeviceInt4Weight(values, torch.ones(columns, features // 128), None, 128, None)
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
CASES = Cases(
    [Value(name, partial(value, shape)) for name, shape in SHAPES.items()],
    [
        Launch(
            "int4 decode",
            partial(launched, 4096, 4096, 8),
            ["_multiply_int4"],
            dtypes=COMPILED,
        ),
        Launch("int4 dequantised", partial(launched, 1024, 1024, 128)),
    ],
)
