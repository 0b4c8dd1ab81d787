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

    Their elements are whole words of 32 bits; those of 64 bits come first.
    """
    if device.type == "cpu" and not has_triton(device):
        return [torch.from_numpy(array) for array in arrays]
    block = pack(arrays)
    if device.type == "cuda":  # pinned: the host does not wait for the copy
        block = block.pin_memory()
    return unpack(block.to(device, non_blocking=True), arrays)


def pack(arrays: Sequence[Array]) -> Tensor:
    """All words of the arrays as int32, one array after the other."""
    return torch.from_numpy(
        np.concatenate([np.ascontiguousarray(each).ravel().view(np.int32) for each in arrays])
    )


def unpack(block: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """Views of a packed block in the shapes and dtypes of `arrays`."""
    parts = torch.split(block, [array.nbytes // 4 for array in arrays])
    return [
        part.view(_DTYPES[array.dtype]).view(array.shape) for part, array in zip(parts, arrays, strict=True)
    ]


_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}
