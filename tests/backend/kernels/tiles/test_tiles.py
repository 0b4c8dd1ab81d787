"""A matrix in tiles is the matrix, and its products are those of NumPy, to the bit however they are taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backend.kernels.compiled import inner
from backend.kernels.tiles import TILE_COLUMNS, TiledWeights, add_one, add_two, tiled, widen

ROWS = 24
Floats = NDArray[np.float32]


@inner
def multiply_one(
    weights: TiledWeights, begin: int, rows: int, x: Floats, source: int, y: Floats, target: int
) -> None:
    add_one(weights, np.uint64(begin), np.uint64(rows), x, np.uint64(source), y, np.uint64(target))


@inner
def multiply_two(
    weights: TiledWeights, begin: int, rows: int,
    x: Floats, sources: tuple[int, int], y: Floats, targets: tuple[int, int],
) -> None:  # fmt: skip
    add_two(
        weights, np.uint64(begin), np.uint64(rows),
        x, np.uint64(sources[0]), np.uint64(sources[1]), y, np.uint64(targets[0]), np.uint64(targets[1]),
    )  # fmt: skip


@inner
def widen_tile(weights: TiledWeights, begin: int, block: Floats) -> None:
    for place in range(0, len(block), TILE_COLUMNS):
        widen(weights, np.uint64(begin + place), block, np.uint64(place))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tiles_hold_columns_row_after_row(dtype: torch.dtype) -> None:
    matrix = torch.randn(3 * TILE_COLUMNS, ROWS).to(dtype)
    found = tiled([matrix, -matrix])
    assert found.shape == (2, 3, ROWS, TILE_COLUMNS)
    values = found
    if dtype is torch.bfloat16:
        assert found.dtype == np.uint16
        values = torch.from_numpy(found).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(values[1, 2, 5], -matrix[2 * TILE_COLUMNS :, 5].float().numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_products(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(1)
    matrix = torch.randn(2 * TILE_COLUMNS, ROWS).to(dtype)
    weights, begin = tiled([matrix]).reshape(-1), ROWS * TILE_COLUMNS
    x = rng.standard_normal(3 * ROWS).astype(np.float32)
    y = rng.standard_normal(3 * TILE_COLUMNS).astype(np.float32)
    one, two, wide = y.copy(), y.copy(), y.copy()
    multiply_one(weights, begin, ROWS, x, ROWS, one, TILE_COLUMNS)
    half = matrix[TILE_COLUMNS:].double().numpy()
    expected = y[TILE_COLUMNS : 2 * TILE_COLUMNS] + half @ x[ROWS : 2 * ROWS].astype(np.float64)
    np.testing.assert_allclose(one[TILE_COLUMNS : 2 * TILE_COLUMNS], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(one[:TILE_COLUMNS], y[:TILE_COLUMNS])
    multiply_one(weights, begin, ROWS, x, 2 * ROWS, one, 0)
    multiply_two(weights, begin, ROWS, x, (ROWS, 2 * ROWS), two, (TILE_COLUMNS, 0))
    np.testing.assert_array_equal(one, two)
    block = np.empty(ROWS * TILE_COLUMNS, np.float32)
    widen_tile(weights, begin, block)
    multiply_two(block, 0, ROWS, x, (2 * ROWS, ROWS), wide, (0, TILE_COLUMNS))
    np.testing.assert_array_equal(one, wide)
