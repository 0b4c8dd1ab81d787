"""Linear with a small weight in fp32 arithmetic, for CPUs: few rows in a loop, many by a library.

Calling a library costs more than the arithmetic of few rows. It takes many where it adds products in the
loop's order, so that a row's result is the same bits in any company; elsewhere the loop takes all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from backend.kernels.linear.packed import HalfWeight, OnednnWeight
from backend.kernels.linear.paired import num_threads
from backend.kernels.linear.small import loop
from backend.kernels.tiles import in_tiles

Packer = Callable[[Tensor, Tensor | None], HalfWeight | OnednnWeight]

SMALL_ELEMENTS = 1 << 18
"""Up to this size the loop is the faster one for few rows: calling a library costs 10 to 20 us more."""

_FEW_ROWS = 16


class TiledWeight:
    """W [N, K] in tiles, as bfloat16 if that represents it exactly; sums in the order of K, then the bias."""

    __slots__ = ("_places", "_run", "_shape", "_tensors")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        columns, k = weight.shape
        tiles = torch.from_numpy(in_tiles([weight]))
        self._tensors = tiles, torch.zeros(columns) if bias is None else bias.float().contiguous()
        self._run = loop.multiply_float32 if tiles.dtype is torch.float32 else loop.multiply_bfloat16
        self._places = tuple(tensor.data_ptr() for tensor in self._tensors)
        self._shape = k, columns

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        (k, columns), count = self._shape, x.shape[0]
        x, y = x.contiguous(), x.new_empty(count, columns)
        job = (0, *self._places, x.data_ptr(), y.data_ptr(), count, k, columns)
        self._run(job, num_threads(count * k * columns // 2))
        return y


class SmallWeight:
    """W [N, K] twice: in tiles for few rows, and in a library's layout for many."""

    __slots__ = ("_few_rows", "_many_rows")

    def __init__(self, weight: Tensor, bias: Tensor | None, library: Packer) -> None:
        self._few_rows = TiledWeight(weight.half() if library is HalfWeight else weight, bias)
        keeps_bits = _keeps_bits(library, *weight.shape)
        self._many_rows = library(weight, bias) if keeps_bits else self._few_rows

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        return self._few_rows(x) if x.shape[0] <= _FEW_ROWS else self._many_rows(x)


@functools.cache
def _keeps_bits(library: Packer, columns: int, k: int) -> bool:
    """Whether the library gives the loop's bits for weights of this shape, on this processor: by trying."""
    generator = torch.Generator().manual_seed(0)
    weight, bias = (
        torch.randn(columns, k, generator=generator).half(),
        torch.randn(columns, generator=generator),
    )
    x = torch.randn(2 * _FEW_ROWS + 1, k, generator=generator)
    return torch.equal(library(weight.float(), bias)(x), TiledWeight(weight, bias)(x))
