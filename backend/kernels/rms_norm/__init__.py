"""RMSNorm: y = x / sqrt(mean(x²) + eps) * w (arXiv:1910.07467), also after x += a.

x, a [..., D] any float, w [D] or broadcastable to x; accumulates in fp32, returns x.dtype.
A part of wider rows is copied first: one row of it is contiguous, several are not, but all get the same bits.
Bound: memory, reads and writes every element once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.compiled import float_bits, num_threads
from backend.kernels.device import uses_triton
from backend.kernels.rms_norm import loop, reference

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension of `x`; a new tensor."""
    if weight.dim() > 1:
        return reference.rms_norm(x, weight, eps)
    x = x.contiguous()
    if uses_triton(x):
        from backend.kernels.rms_norm.kernel import rms_norm as on_gpu

        return on_gpu(x, weight, eps)
    if x.dtype is not torch.float32:
        return reference.rms_norm(x, weight, eps)
    assert weight.is_contiguous() and weight.dtype is x.dtype
    y, size = torch.empty_like(x), x.shape[-1]
    places = x.data_ptr(), weight.data_ptr(), y.data_ptr()
    loop.normalise((0, *places, x.numel() // size, size, float_bits(eps)), num_threads(x.numel()))
    return y


def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `added` to `x` in place, then normalise the sums as they are stored; a new tensor."""
    assert x.shape == added.shape and x.dtype is added.dtype
    if uses_triton(x) and weight.dim() == 1 and x.is_contiguous() and added.is_contiguous():
        from backend.kernels.rms_norm.kernel import rms_norm as on_gpu

        return on_gpu(x, weight, eps, added)
    return rms_norm(x.add_(added), weight, eps)
