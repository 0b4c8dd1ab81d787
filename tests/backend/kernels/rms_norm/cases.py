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


def summed(size: int, part: str, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The residual stream after an addition, or its norm."""
    stream, added = (torch.randn(5, size).to(dtype).to(device) for _ in range(2))
    weight, exact = torch.randn(size).to(dtype).to(device), stream.double() + added.double()
    found = rms_norm(stream, weight, 1e-6, added)
    if part == "sum":
        return stream, exact
    return found, exact / (exact.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


def launched(size: int, is_sum: bool, dtype: torch.dtype) -> Tensor:
    x, weight = torch.zeros(4, size, dtype=dtype), torch.zeros(size, dtype=dtype)
    return rms_norm(x, weight, 1e-6, torch.zeros_like(x) if is_sum else None)


SHAPES = [(1, 8), (3, 63), (2, 3, 128), (5, 1000)]
CASES = Cases(
    [
        *(
            Value(f"{shape} times {scale}", partial(value, shape, scale))
            for shape in SHAPES
            for scale in (1.0, 1e-3)
        ),
        *(
            Value(f"{part} of {size}", partial(summed, size, part))
            for size in (63, 1000)
            for part in ("sum", "norm")
        ),
    ],
    [
        Launch(
            f"{size} columns{', added' if is_sum else ''}", partial(launched, size, is_sum), dtypes=COMPILED
        )
        for size in (1024, 8192)
        for is_sum in (False, True)
    ],
)
