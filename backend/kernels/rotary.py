"""Rotary position embedding (arXiv:2104.09864). In torch, on every device.

(a, b) → (a cos - b sin, b cos + a sin) for the two halves a, b of each head.
x, out [T, H, D]; cos, signed_sin [T, 1, D]: the angle of each pair twice; sines negative in the first half.
Bound: memory, reads and writes every element once.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor, out: Tensor) -> None:
    """Rotate every head of every token by the token's position into `out`, which may be `x` itself."""
    assert x.dim() == 3 and x.shape == out.shape and cos.shape[0] == signed_sin.shape[0] == x.shape[0]
    swapped = x.roll(x.shape[-1] // 2, -1)  # a copy: `out` may be `x`
    torch.mul(x, cos, out=out).addcmul_(swapped, signed_sin)
