"""Rotary position embedding (arXiv:2104.09864), after RMSNorm of each head where a model has that.

(a, b) → (a cos - b sin, b cos + a sin) for the two halves a, b of each head.
x [T, H, D]; cos, signed_sin [T, 1, D]: the angle of each pair twice; sines negative in the first half.
Bound: memory, reads and writes every element once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.compiled import float_bits, num_threads
from backend.kernels.device import uses_triton
from backend.kernels.rotary import loop, reference

__all__ = ["rotate"]


def rotate(
    x: Tensor, cos: Tensor, signed_sin: Tensor, weight: Tensor | None = None, eps: float = 0.0
) -> None:
    """Rotate every head of every token by the token's position, in place.

    With a `weight` [H, D], heads are normalised before.
    """
    assert x.dim() == 3 and cos.shape[0] == signed_sin.shape[0] == x.shape[0]
    num_heads, size = x.shape[1:]
    is_dense = x.stride(1) == size and x.stride(2) == 1
    if not is_dense or size % 2 or not (uses_triton(x) or x.dtype is torch.float32):
        reference.rotate(x, cos, signed_sin, weight, eps)
        return
    assert cos.is_contiguous() and signed_sin.is_contiguous()
    assert weight is None or (weight.shape == x.shape[1:] and weight.is_contiguous())
    if uses_triton(x):
        from backend.kernels.rotary.kernel import rotate as on_gpu

        on_gpu(x, cos, signed_sin, weight, eps)
        return
    places = x.data_ptr(), cos.data_ptr(), signed_sin.data_ptr(), 0 if weight is None else weight.data_ptr()
    shape = len(x), x.stride(0), num_heads, size
    loop.rotate((0, *places, *shape, float_bits(eps)), num_threads(x.numel()))
