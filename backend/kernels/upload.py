"""How data of the host reaches a device: arrays in one block, in one copy that the host does not wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.device import has_triton

Array = NDArray[Any]


def upload(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """The arrays on `device`, each in its shape and dtype: copied there in one block, on a CPU not copied.

    Their elements are words of 32 or 64 bits.
    """
    if device.type == "cpu" and not has_triton(device):
        return [torch.from_numpy(array) for array in arrays]
    # The host does not wait for a copy of pinned memory.
    block = pack(arrays, is_pinned=device.type == "cuda")
    return unpack(block.to(device, non_blocking=True), arrays)


def pack(arrays: Sequence[Array], *, is_pinned: bool = False) -> Tensor:
    """All words of the arrays as int32, one array after the other, those of 64 bits first: on even places."""
    ordered = sorted(arrays, key=lambda array: -array.itemsize)
    block = torch.empty(sum(each.nbytes for each in arrays) // 4, dtype=torch.int32, pin_memory=is_pinned)
    np.concatenate([np.ravel(each).view(np.int32) for each in ordered], out=block.numpy())
    return block


def unpack(block: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """Views of a packed block in the shapes and dtypes of `arrays`."""
    order = sorted(range(len(arrays)), key=lambda i: -arrays[i].itemsize)
    parts = torch.split(block, [arrays[i].nbytes // 4 for i in order])
    found = dict(zip(order, parts, strict=True))
    return [found[i].view(_DTYPES[each.dtype]).view(each.shape) for i, each in enumerate(arrays)]


_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}
