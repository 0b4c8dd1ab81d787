"""LoRA on a CPU in one Numba loop (loop.py): a row's result is the same bits in any company.

It uses a second copy of the weights, in the order in which it reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.linear.paired import num_threads
from backend.kernels.lora import loop
from backend.kernels.lora.rows import AdapterRows
from backend.kernels.tiles import TILE_COLUMNS, padded

Floats = NDArray[np.float32]
Weights = NDArray[np.uint16] | Floats


class LoopWeights:
    """All slots of a linear layer, in bfloat16 while that represents every adapter exactly.

    That is half of the bytes; the first adapter that needs float32 turns all slots into float32.
    """

    __slots__ = ("_columns", "_run", "_words", "down", "ends", "row_multiplications", "up")

    def __init__(self, num_slots: int, in_features: int, columns: Sequence[int], rank: int) -> None:
        """`columns`: the outputs of each part."""
        num_low = -(-len(columns) * rank // loop.LOW_STEP) * loop.LOW_STEP
        num_tiles = sum(padded(width) for width in columns) // TILE_COLUMNS
        self._columns = list(columns)
        self.down: Weights = np.zeros((num_slots, in_features, num_low), np.uint16)
        self.up: Weights = np.zeros((num_slots, num_tiles, rank, TILE_COLUMNS), np.uint16)
        self.ends = np.cumsum(columns, dtype=np.int64)  # one past the last column of each part
        self.row_multiplications = len(columns) * rank * in_features + rank * int(self.ends[-1])
        self._prepare()

    def _prepare(self) -> None:
        """Note the loop for these weights, and the words of its jobs; asking for addresses is slow."""
        self._run = loop.add_rows_bfloat16 if self.down.dtype == np.uint16 else loop.add_rows_float32
        places = self.down.ctypes.data, self.up.ctypes.data
        sizes = len(self.ends), *self.down.shape, *self.up.shape[1:3]
        self._words: tuple[int, ...] = (self.ends.ctypes.data, *places, *sizes)

    def add_rows(self, y: Tensor, x: Tensor, rows: AdapterRows) -> None:
        """y [T, N] += up[slot]ᵀ (down[slot] x) where a row has a slot; contiguous float32, not checked."""
        count = len(rows.slots)
        job = (0, y.data_ptr(), x.data_ptr(), rows.address, count, *self._words)
        self._run(job, num_threads(count * self.row_multiplications // 2))

    def put(self, slot: int, down: Tensor, up: Tensor) -> None:
        """Replace the adapter in `slot`: down [parts * ranks, K] and up [ranks, N], in float32."""
        tiles = [
            F.pad(part, (0, padded(part.shape[1]) - part.shape[1])).view(len(up), -1, TILE_COLUMNS)
            for part in torch.split(up, self._columns, dim=1)
        ]
        down, up = down.T, torch.cat(tiles, dim=1).transpose(0, 1)
        if self.down.dtype == np.uint16 and not (_is_narrow(down) and _is_narrow(up)):
            self.down, self.up = _widened(self.down), _widened(self.up)
            self._prepare()
        for weights, values in ((self.down, down), (self.up, up)):
            own = torch.from_numpy(weights)[slot]
            (own.view(torch.bfloat16) if weights.dtype == np.uint16 else own)[:, : values.shape[1]] = values

    def clear(self, slot: int) -> None:
        """Empty `slot`: zeros."""
        self.down[slot] = 0
        self.up[slot] = 0


def _is_narrow(values: Tensor) -> bool:
    """Whether bfloat16 represents them exactly."""
    return torch.equal(values.bfloat16().float(), values)


def _widened(bits: Weights) -> Floats:
    return torch.from_numpy(bits).view(torch.bfloat16).float().numpy()
