"""SwiGLU in Triton."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from backend.kernels.swiglu.kernel import swiglu
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value


def value(rows: int, size: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    gate_up = (torch.randn(rows, 2 * size) * 4).to(dtype).to(device)
    gate, up = gate_up.double()[:, :size], gate_up.double()[:, size:]
    return swiglu(gate_up), gate / (1 + (-gate).exp()) * up


CASES = Cases(
    [Value(f"{rows} x {size}", partial(value, rows, size)) for rows, size in [(1, 1), (3, 70), (2, 3000)]],
    [Launch("rows", lambda dtype: swiglu(torch.zeros(4, 6144, dtype=dtype)), dtypes=COMPILED)],
)
