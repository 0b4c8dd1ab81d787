"""Linear by AMX, for weights in bfloat16 or int8: x [T, K] → y [T, N] in float32.

x is rounded to bfloat16, or in each row to 8 bits. Bound: memory up to about 32 rows, then the second cache.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from numba.core.registry import cpu_target
from torch import Tensor

from backend.kernels.linear.amx import loop
from backend.kernels.linear.paired import num_threads, padded


@functools.cache
def is_available() -> bool:
    """Whether Numba compiles for AMX (NUMBA_CPU_FEATURES can deny it), and the kernel lets us use it."""
    features = cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    return {"+amx-bf16", "+amx-int8"} <= {*features} and torch.cpu._init_amx()


class TileWeight:
    """W [N, K] in bfloat16 as tiles, padded with 0: [N / 32, K / 32, 2, 16, 16, 2]."""

    __slots__ = ("_arrays", "_shape")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        columns, k = weight.shape
        self._arrays = in_tiles(weight, torch.bfloat16), padded(bias, columns)
        self._shape = k, columns

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        k, columns = self._shape
        weights, bias = self._arrays
        x = x.bfloat16().contiguous()
        if k % 32:
            x = F.pad(x, (0, -k % 32))
        y = torch.empty(len(x), whole(columns))
        places = [each.data_ptr() for each in (weights, bias, x, y)]
        shape = len(x), x.shape[1] // 2, y.shape[1]
        loop.multiply((0, *places, *shape), num_threads(len(x) * k * columns // 2))
        return y[:, :columns].contiguous()


def whole(columns: int) -> int:
    """The columns of whole blocks."""
    return -(-columns // loop.BLOCK_COLUMNS) * loop.BLOCK_COLUMNS


def in_tiles(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """`weight` [N, K] as [N / 32, steps, 2 tiles, 16 units, 16 columns, elements of a unit]."""
    size = 4 // dtype.itemsize
    steps = -(-weight.shape[1] // (16 * size))
    tiles = torch.zeros(-(-len(weight) // 32), steps, 2, 16, 16, size, dtype=dtype)
    for block, rows in zip(tiles, torch.split(weight, 32), strict=True):
        whole = F.pad(rows.to(dtype), (0, steps * 16 * size - weight.shape[1], 0, 32 - len(rows)))
        block.copy_(whole.view(2, 16, steps, 16, size).permute(2, 0, 3, 1, 4))
    return tiles
