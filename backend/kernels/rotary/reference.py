"""Norm and rotation of heads in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.rms_norm import reference


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor, weight: Tensor | None, eps: float) -> None:
    """Rotate the heads of x [T, H, D] in place; with a `weight` [H, D], they are normalised before."""
    source = x if weight is None else reference.rms_norm(x, weight, eps)
    swapped = source.roll(x.shape[-1] // 2, -1)
    torch.mul(source, cos, out=x).addcmul_(swapped, signed_sin)
