"""Norm and rotation of heads in Triton."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from backend.kernels.rotary import Angles, reference
from backend.kernels.rotary.kernel import rotate
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value


def table_of(num_positions: int, size: int) -> Tensor:
    """Cosines and signed sines of random angles, [2, positions, size]."""
    angles = torch.rand(num_positions, size // 2)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)))


def exact(heads: Tensor, table: Tensor, positions: Tensor, weight: Tensor | None) -> Tensor:
    """Heads in float64, normed and rotated."""
    heads = heads.double()
    if weight is not None:
        heads = heads / (heads.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    reference.rotate(heads, *Angles(table.double(), positions).gather(), None, 0.0)
    return heads


def value(
    shape: tuple[int, int, int], has_weight: bool, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    tokens, heads, size = shape
    wide = torch.randn(tokens, heads + 2, size).to(dtype).to(device)
    table = table_of(50, size).to(dtype).to(device)
    positions = torch.randint(50, (tokens,), dtype=torch.int32).to(device)
    weight = torch.randn(heads, size).to(dtype).to(device) if has_weight else None
    wanted = wide.double()
    wanted[:, :heads] = exact(wide[:, :heads], table, positions, weight)
    rotate(wide[:, :heads], table, positions, weight, 1e-6)
    return wide, wanted


def launched(has_weight: bool, dtype: torch.dtype) -> None:
    """Qwen3-8B's heads."""
    table, positions = torch.zeros(2, 64, 128, dtype=dtype), torch.zeros(4, dtype=torch.int32)
    weight = torch.zeros(40, 128, dtype=dtype) if has_weight else None
    rotate(torch.zeros(4, 48, 128, dtype=dtype)[:, :40], table, positions, weight, 1e-6)


SHAPES = [(1, 1, 2), (3, 9, 64), (2, 5, 80), (4, 40, 128)]
CASES = Cases(
    [
        Value(f"{shape}{' after a norm' if has_weight else ''}", partial(value, shape, has_weight))
        for shape in SHAPES
        for has_weight in (False, True)
    ],
    [Launch(f"norm {norm}", partial(launched, norm), dtypes=COMPILED) for norm in (False, True)],
)
