"""Linear with weights and activations in 8 bits (W8A8), for CPUs with AVX-512 VNNI, or with AMX.

x [T, K] float → y [T, N] in x.dtype. Weights have a scale per column of y; each row of x is rounded with a
scale of its own. Sums are integers, so a row's result never depends on its company. Bound: memory for few
rows (reads N K bytes), compute for many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from numba.core.registry import cpu_target
from torch import Tensor

from backend.kernels.linear import amx
from backend.kernels.linear.int8 import loop
from backend.kernels.linear.loop import BLOCK_COLUMNS
from backend.kernels.linear.paired import padded

IS_AVAILABLE = "+avx512vnni" in cpu_target.target_context.codegen().magic_tuple()[2].split(",")
"""Whether Numba compiles for a processor with the instruction (NUMBA_CPU_FEATURES may say less)."""

_MAX_COLUMNS = 1 << 16
"""Sums of 2^16 products of up to 255 · 128 fit into 32 bits."""

_ONE_THREAD = 1 << 18
"""Up to this number of products, waking a thread costs more than it saves."""

_round_rows = cast("Callable[..., None]", loop.round_rows)


class Int8Weight:
    """An int8 weight in tiles. A row of x with NaN or infinity gives a row of NaN."""

    __slots__ = ("_arrays", "_is_amx", "_places", "_shape")

    def __init__(self, values: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        """`values` [N, K] int8; `scales` [N] float32; `bias` [N]."""
        num_rows, num_columns = values.shape
        assert self.fits(num_columns)
        starts = values.sum(1, dtype=torch.int32) * -loop.ZERO
        self._is_amx = amx.is_available()
        tiles = amx.in_tiles(values, torch.int8) if self._is_amx else _in_tiles(values)
        parts = padded(starts, num_rows, torch.int32), padded(scales, num_rows), padded(bias, num_rows)
        self._arrays = [tiles, *parts]
        self._places = [each.data_ptr() for each in self._arrays]
        self._shape = -(-num_columns // 64) * 64 if self._is_amx else -(-num_columns // 4) * 4, num_rows

    @staticmethod
    def fits(num_columns: int) -> bool:
        """Whether this processor can multiply by weights [N, K]."""
        return IS_AVAILABLE and 0 < num_columns <= _MAX_COLUMNS

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        count, (width, columns) = len(x), self._shape
        rounded, scales = torch.empty(count, width, dtype=torch.uint8), torch.empty(count)
        _round_rows(x.float().contiguous().numpy(), rounded.numpy(), scales.numpy())
        threads = 1 if count * width * columns <= _ONE_THREAD else torch.get_num_threads()
        tiles, starts, factors, bias = self._places
        if self._is_amx:
            y = torch.empty(count, amx.whole(columns))
            job = (0, tiles, starts, rounded.data_ptr(), y.data_ptr(), count, width // 4, y.shape[1])
            amx.loop.multiply_int8((*job, factors, bias, scales.data_ptr()), threads)
            return y[:, :columns].to(x.dtype).contiguous()
        y = torch.empty(count, columns)
        places = rounded.data_ptr(), scales.data_ptr(), y.data_ptr()
        loop.multiply((0, *self._places, *places, count, width // 4, columns), threads)
        return y.to(x.dtype)


def _in_tiles(values: Tensor) -> Tensor:
    """[N, K] as [N / 64, K / 4, 64, 4]."""
    values = F.pad(values, (0, -values.shape[1] % 4, 0, -len(values) % BLOCK_COLUMNS))
    return values.view(-1, BLOCK_COLUMNS, values.shape[1] // 4, 4).transpose(1, 2).contiguous()
