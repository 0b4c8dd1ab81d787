"""Weights as bfloat16, multiplied with x rounded to bfloat16 and added in float32, in a Numba loop."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from numba.core.registry import cpu_target
from torch import Tensor

from backend.kernels.linear import loop

_ROWS = 16 * loop.BLOCK_COLUMNS

_ONE_THREAD = 1 << 17
"""Up to this many products, waking a thread costs more than it saves."""


@functools.cache
def is_available() -> bool:
    """Whether Numba compiles for a processor with VDPBF16PS; NUMBA_CPU_FEATURES can deny it."""
    return "+avx512bf16" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def fits(weight: Tensor) -> bool:
    """Whether bfloat16 represents each element exactly; by blocks, as copies of an output head are large."""
    return all(torch.equal(rows.bfloat16().to(rows.dtype), rows) for rows in torch.split(weight, _ROWS))


class LoopWeight:
    """W [N, K] in blocks of 64 rows, as pairs along K: [N / 64, K / 2, 64, 2], padded with 0."""

    __slots__ = ("_bias", "_places", "_shape", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        columns, k = weight.shape
        blocks, pairs = -(-columns // loop.BLOCK_COLUMNS), -(-k // 2)
        self._weight = torch.zeros(blocks, pairs, loop.BLOCK_COLUMNS, 2, dtype=torch.bfloat16)
        for block, rows in zip(self._weight, torch.split(weight, loop.BLOCK_COLUMNS), strict=True):
            narrow = F.pad(rows.bfloat16(), (0, k % 2)).view(len(rows), pairs, 2).view(torch.int32)
            block.view(torch.int32)[:, : len(rows), 0] = narrow[:, :, 0].T
        self._bias = padded(bias, columns)
        self._places = self._weight.data_ptr(), self._bias.data_ptr()
        self._shape = pairs, columns

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        pairs, columns = self._shape
        x = rounded(x)
        y = torch.empty(len(x), columns)
        job = (0, *self._places, x.data_ptr(), y.data_ptr(), len(x), pairs, columns)
        loop.multiply(job, num_threads(len(x) * pairs * columns))
        return y


def rounded(x: Tensor) -> Tensor:
    """x [T, K] in bfloat16, in whole pairs."""
    x = x.bfloat16().contiguous()
    return F.pad(x, (0, 1)) if x.shape[1] % 2 else x


def padded(values: Tensor | None, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`values` [N] of whole blocks; without any, zeros."""
    found = torch.zeros(-(-columns // loop.BLOCK_COLUMNS) * loop.BLOCK_COLUMNS, dtype=dtype)
    if values is not None:
        found[:columns] = values
    return found


def num_threads(num_products: int) -> int:
    """The threads that are worth waking for this number of products of pairs."""
    return 1 if num_products <= _ONE_THREAD else torch.get_num_threads()
