"""Products of one or two rows with a tile of a matrix: what loops over small matrices on a CPU are made of.

A tile is TILE_COLUMNS columns of a matrix [K, N], row after row, so that it is read in one run. Each sum is
added up in the order of the rows, and rounded once a product where the processor can: it is the same however
many rows are taken at once, and whether the tile was widened before. kernel.py is called by what Numba
compiles, and written in LLVM's vectors, so that sums stay in registers. Bound: memory for few rows; with
many, half of what the processor's multiply-adds could.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.tiles.kernel import TILE_COLUMNS, add_one, add_two, widen

__all__ = ["TILE_COLUMNS", "TiledWeights", "add_one", "add_two", "tiled", "widen"]

TiledWeights = NDArray[np.uint16] | NDArray[np.float32]
"""[matrices, N / TILE_COLUMNS, K, TILE_COLUMNS]: bfloat16 as its bits, or float32."""


def tiled(matrices: list[Tensor]) -> TiledWeights:
    """Weights [N, K] of equal shapes; N is a multiple of TILE_COLUMNS. What is not bfloat16 is widened."""
    stacked = torch.stack(matrices)
    tiles = stacked.view(len(matrices), -1, TILE_COLUMNS, stacked.shape[2]).transpose(2, 3).contiguous()
    if tiles.dtype is torch.bfloat16:
        bits: NDArray[np.uint16] = tiles.view(torch.uint16).numpy()
        return bits
    floats: NDArray[np.float32] = tiles.float().numpy()
    return floats
