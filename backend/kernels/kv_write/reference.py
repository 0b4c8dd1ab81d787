"""The store of keys and values in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.quantised_kv import LARGEST, quantise


def store(keys_values: Tensor, slots: Tensor, memory: Tensor) -> None:
    """Store `keys_values` [T, 2 Hkv, D], keys first, at `slots` [T] of `memory` [S, 2 Hkv, W]."""
    if memory.dtype in LARGEST:  # torch copies no rows of float8 by index
        stored = quantise(keys_values, memory.dtype).view(torch.int8)
        memory.view(torch.int8).index_copy_(0, slots, stored)
    else:
        memory.index_copy_(0, slots, keys_values.to(memory.dtype))
