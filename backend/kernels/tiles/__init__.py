"""Tiled matrices and their products, for Numba loops over small models on a CPU.

A tile is TILE_COLUMNS columns of a matrix [K, N], row by row, so that it is read sequentially. Sums are added
in the order of the rows, with fused multiply-adds where the processor has them: results do not depend on how
many rows of x are multiplied at once. loop.py is called from Numba code and emits LLVM vector instructions,
so that sums stay in registers. Bound: memory for few rows; with many, half of the processor's multiply-adds.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.tiles.loop import TILE_COLUMNS, add_product, add_tile, adder, multiply, product

__all__ = [
    "TILE_COLUMNS",
    "TiledWeights",
    "add_product",
    "add_tile",
    "adder",
    "in_tiles",
    "multiply",
    "padded",
    "product",
]

TiledWeights = NDArray[np.uint16] | NDArray[np.float32]
"""[matrices, N / TILE_COLUMNS, K, TILE_COLUMNS]: bfloat16 as its bits, or float32."""


def in_tiles(matrices: list[Tensor]) -> TiledWeights:
    """Tile weights [N, K] of equal shapes, N padded with 0; in bfloat16 if that represents them exactly."""
    stacked = torch.stack(matrices).float()
    missing = padded(stacked.shape[1]) - stacked.shape[1]
    if missing:
        stacked = F.pad(stacked, (0, 0, 0, missing))
    tiles = stacked.view(len(matrices), -1, TILE_COLUMNS, stacked.shape[2]).transpose(2, 3).contiguous()
    narrow = tiles.bfloat16()
    if torch.equal(narrow.float(), tiles):
        bits: NDArray[np.uint16] = narrow.view(torch.uint16).numpy()
        return bits
    floats: NDArray[np.float32] = tiles.numpy()
    return floats


def padded(num_columns: int) -> int:
    """`num_columns`, rounded up to whole tiles."""
    return -(-num_columns // TILE_COLUMNS) * TILE_COLUMNS
