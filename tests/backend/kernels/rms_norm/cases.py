"""RMSNorm in Triton."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from backend.kernels.rms_norm.kernel import rms_norm
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value


def value(shape: tuple[int, ...], scale: float, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    x = (torch.randn(shape) * scale).to(dtype).to(device)
    weight = torch.randn(shape[-1]).to(dtype).to(device)
    exact = x.double()
    exact = exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    return rms_norm(x, weight, 1e-6), exact


def launched(size: int, dtype: torch.dtype) -> Tensor:
    return rms_norm(torch.zeros(4, size, dtype=dtype), torch.zeros(size, dtype=dtype), 1e-6)


SHAPES = [(1, 8), (3, 63), (2, 3, 128), (5, 1000)]
CASES = Cases(
    [
        Value(f"{shape} times {scale}", partial(value, shape, scale))
        for shape in SHAPES
        for scale in (1.0, 1e-3)
    ],
    [Launch(f"{size} columns", partial(launched, size), dtypes=COMPILED) for size in (1024, 8192)],
)
