"""A matrix in tiles is the matrix, and its products are NumPy's, to the bit however many rows are taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from backend.kernels.compiled import inner
from backend.kernels.tiles import TILE_COLUMNS, TiledWeights, adder, in_tiles, multiply, padded

ROWS = 23
Floats = NDArray[np.float32]


@inner
def call(matrix: TiledWeights, begin: int, shape: tuple[int, int], x: Floats, y: Floats, count: int) -> None:
    multiply(matrix, begin, shape, x, y, np.uint64(count))


def product(matrix: TiledWeights, begin: int, x: Floats, y: Floats) -> Floats:
    """y [count, columns] + x [count, ROWS] · the matrix."""
    found = y.copy()
    call(matrix.reshape(-1), begin, (ROWS, y.shape[1]), x.reshape(-1), found.reshape(-1), len(x))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tiles_hold_columns_row_after_row(dtype: torch.dtype) -> None:
    matrix = torch.randn(2 * TILE_COLUMNS + 5, ROWS).to(dtype)
    found = in_tiles([matrix, -matrix])
    assert found.shape == (2, 3, ROWS, TILE_COLUMNS) and padded(len(matrix)) == 3 * TILE_COLUMNS
    values = found
    if dtype is torch.bfloat16:
        assert found.dtype == np.uint16
        values = torch.from_numpy(found).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(
        values[1, 1, 7], -matrix[TILE_COLUMNS : 2 * TILE_COLUMNS, 7].float().numpy()
    )
    np.testing.assert_array_equal(values[0, 2, 7, :5], matrix[-5:, 7].float().numpy())
    assert not values[:, 2, :, 5:].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_products(dtype: torch.dtype, count: int) -> None:
    rng = np.random.default_rng(1)
    matrix = torch.randn(2 * TILE_COLUMNS, ROWS).to(dtype)
    both = in_tiles([torch.zeros_like(matrix), matrix])
    x = rng.standard_normal((count, ROWS)).astype(np.float32)
    y = rng.standard_normal((count, len(matrix))).astype(np.float32)
    found = product(both, both[0].size, x, y)
    expected = y + x.astype(np.float64) @ matrix.double().numpy().T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for row in range(count):
        np.testing.assert_array_equal(product(both, both[0].size, x[row:][:1], y[row:][:1])[0], found[row])
    np.testing.assert_array_equal(product(both, 0, x, y), y)


def test_each_width_has_its_own_symbol_name() -> None:
    """Cached machine code of several processes is linked by name: equal names would swap the widths."""
    assert len({adder(width).py_func.__qualname__ for width in (8, 16, 32)}) == 3
