"""Rotary embedding in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor, out: Tensor) -> None:
    """See the package."""
    swapped = x.roll(x.shape[-1] // 2, -1)  # a copy: `out` may be `x`
    torch.mul(x, cos, out=out).addcmul_(swapped, signed_sin)
