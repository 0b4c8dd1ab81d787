"""Keys and values in 8 bits: the numbers of one head of one slot, then their scale.

[..., D] ↔ [..., D + D % 2 + 2] in int8 or float8_e4m3fn, of which the last two bytes are a bfloat16: the
scale goes wherever its numbers are copied. Bound: memory, reads and writes every element once.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of each 8-bit dtype; other dtypes are stored without scales."""

_SCALE_BYTES, _LEAST_SCALE = 2, torch.finfo(torch.bfloat16).tiny


def stored_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements that one head of one slot takes; even, as the scale is read in place."""
    return head_dim + head_dim % 2 + _SCALE_BYTES if dtype in LARGEST else head_dim


def quantise(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Round `values` [..., D] to what is stored, each row alone.

    A row that is not finite gets a scale of NaN or infinity and is read as NaN: its sequence fails, as it
    would in other dtypes, and no other row changes.
    """
    largest, head_dim = LARGEST[dtype], values.shape[-1]
    numbers = values.float()
    # The scale is rounded before it divides: that costs no accuracy. It is at least the least normal
    # number, as processors may flush others to 0.
    scales = (numbers.abs().amax(-1, keepdim=True) / largest).clamp_(min=_LEAST_SCALE).bfloat16()
    numbers = numbers / scales.float()
    if dtype is torch.int8:
        numbers.round_()
    stored = values.new_zeros((*values.shape[:-1], stored_width(head_dim, dtype)), dtype=dtype)
    stored[..., :head_dim] = numbers.clamp_(-largest, largest)
    stored.view(torch.bfloat16)[..., -1:] = scales
    return stored


def dequantise(stored: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """What `quantise` stored, as [..., head_dim] in `dtype`; other dtypes are only converted."""
    if stored.dtype not in LARGEST:
        return stored.to(dtype)
    return stored[..., :head_dim].to(dtype).mul_(stored.view(torch.bfloat16)[..., -1:].to(dtype))
