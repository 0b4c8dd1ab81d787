"""Norm and rotation of heads in Triton."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from backend.kernels.rotary import reference
from backend.kernels.rotary.kernel import rotate
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value


def value(
    shape: tuple[int, int, int], has_weight: bool, dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor]:
    tokens, heads, size = shape
    wide = torch.randn(tokens, heads + 2, size).to(dtype).to(device)
    angles = torch.rand(tokens, 1, size // 2)
    cos = torch.cat((angles.cos(), angles.cos()), -1).to(dtype).to(device)
    signed_sin = torch.cat((-angles.sin(), angles.sin()), -1).to(dtype).to(device)
    weight = torch.randn(heads, size).to(dtype).to(device) if has_weight else None
    exact = wide.double()
    widened = None if weight is None else weight.double()
    own = exact[:, :heads]
    if widened is not None:
        own = own / (own.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * widened
    reference.rotate(own, cos.double(), signed_sin.double(), None, 0.0)
    exact[:, :heads] = own
    rotate(wide[:, :heads], cos, signed_sin, weight, 1e-6)
    return wide, exact


def launched(has_weight: bool, dtype: torch.dtype) -> None:
    """Qwen3-8B's heads."""
    angles = torch.zeros(4, 1, 128, dtype=dtype)
    weight = torch.zeros(40, 128, dtype=dtype) if has_weight else None
    rotate(torch.zeros(4, 48, 128, dtype=dtype)[:, :40], angles, angles, weight, 1e-6)


SHAPES = [(1, 1, 2), (3, 9, 64), (2, 5, 80), (4, 40, 128)]
CASES = Cases(
    [
        Value(f"{shape}{' after a norm' if has_weight else ''}", partial(value, shape, has_weight))
        for shape in SHAPES
        for has_weight in (False, True)
    ],
    [Launch(f"norm {norm}", partial(launched, norm), dtypes=COMPILED) for norm in (False, True)],
)
