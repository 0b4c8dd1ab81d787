"""RMSNorm in Triton: a program for each row, which it reads once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks


def rms_norm(x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None) -> Tensor:
    """Normalise the last dimension of contiguous `x`, all of it in one block; a new tensor.

    `added` is added to `x` in place before.
    """
    size = x.shape[-1]
    y, rows = torch.empty_like(x), x.numel() // size
    if rows:
        options = blocks("rms_norm", "row", x.dtype).options()
        _rms_norm[rows,](
            *(x, added, weight, y, size, eps),
            BLOCK=triton.next_power_of_2(size),
            IS_SUM=added is not None,
            **options,
        )
    return y


@triton.jit
def _rms_norm(x, added, weight, y, size, eps, BLOCK: tl.constexpr, IS_SUM: tl.constexpr):
    """y[row] = x[row] / sqrt(mean(x[row]²) + eps) · weight, where IS_SUM after x[row] += added[row].

    Grid (rows); x, added, y [rows, size]; weight [size]. The sum is rounded to x's dtype before its norm.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_column = column < size
    own = tl.load(x + row * size + column, mask=is_column, other=0.0)
    if IS_SUM:
        more = tl.load(added + row * size + column, mask=is_column, other=0.0).to(tl.float32)
        own = (own.to(tl.float32) + more).to(x.dtype.element_ty)
        tl.store(x + row * size + column, own, mask=is_column)
    own = own.to(tl.float32)
    factor = 1 / tl.sqrt_rn(tl.sum(own * own, 0) / size + eps)
    gain = tl.load(weight + column, mask=is_column, other=0.0).to(tl.float32)
    tl.store(y + row * size + column, (own * factor * gain).to(y.dtype.element_ty), mask=is_column)
