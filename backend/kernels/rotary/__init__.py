"""Rotary position embedding (arXiv:2104.09864), after RMSNorm of each head where a model has that.

(a, b) → (a cos - b sin, b cos + a sin) for the two halves a, b of each head.
x [T, H, D]; cosines and sines are read from a table of all positions.
Bound: memory, reads and writes every element once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from backend.kernels.compiled import float_bits, num_threads
from backend.kernels.device import uses_triton
from backend.kernels.rotary import loop, reference

__all__ = ["Angles", "rotate"]


class Angles(NamedTuple):
    """How far the heads of each token are turned."""

    table: Tensor  # [2, N, D]: cosines, and sines, negative in the first half; the angle of each pair twice
    positions: Tensor  # [T] int32, below N

    def gather(self) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of each token, [T, 1, D]."""
        cos, signed_sin = self.table.index_select(1, self.positions).unsqueeze(2)
        return cos, signed_sin


def rotate(x: Tensor, angles: Angles, weight: Tensor | None = None, eps: float = 0.0) -> None:
    """Rotate every head of every token by the token's position, in place.

    With a `weight` [H, D], heads are normalised before.
    """
    num_heads, size = x.shape[1:]
    is_dense = x.stride(1) == size and x.stride(2) == 1
    if not is_dense or size % 2 or not (uses_triton(x) or x.dtype is torch.float32):
        reference.rotate(x, *angles.gather(), weight, eps)
        return
    table, positions = angles
    assert table.is_contiguous() and positions.is_contiguous() and positions.shape == x.shape[:1]
    assert positions.dtype is torch.int32
    assert weight is None or (weight.shape == x.shape[1:] and weight.is_contiguous())
    if uses_triton(x):
        from backend.kernels.rotary.kernel import rotate as on_gpu

        on_gpu(x, table, positions, weight, eps)
        return
    places = x.data_ptr(), table.data_ptr(), positions.data_ptr(), 0 if weight is None else weight.data_ptr()
    shape = len(x), x.stride(0), num_heads, size, table.shape[1]
    loop.rotate((0, *places, *shape, float_bits(eps)), num_threads(x.numel()))
