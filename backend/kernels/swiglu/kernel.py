"""SwiGLU in Triton: a program for each block of columns of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks


def swiglu(gate_up: Tensor) -> Tensor:
    """Gate the right half of contiguous `gate_up` by the left half; a new tensor."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if y.numel():
        options = blocks("swiglu", "row", gate_up.dtype).options()
        _swiglu[rows, triton.cdiv(size, options["BLOCK"])](gate_up, y, size, **options)
    return y


@triton.jit
def _swiglu(gate_up, y, size, BLOCK: tl.constexpr):
    """y = silu(gate) · up. Grid (rows, size / BLOCK); gate_up [rows, 2, size]; y [rows, size]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * size + column, mask=is_column, other=0.0).to(tl.float32)
    gated = gate / (1 + tl.exp(-gate)) * up
    tl.store(y + row * size + column, gated.to(y.dtype.element_ty), mask=is_column)
