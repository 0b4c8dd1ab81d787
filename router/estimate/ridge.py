"""Ridge regression on dense and sparse features, by conjugate gradients: no big matrix is made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Matrix = NDArray[np.float64]

MAX_ITERATIONS = 200
TOLERANCE = 1e-3


class Rows:
    """Features of N prompts: dense [N, D], then sparse columns, all of one value in a prompt."""

    def __init__(self, dense: Array, columns: Sequence[NDArray[np.int64]] = (), num_columns: int = 0) -> None:
        """`columns`: those of each prompt, each of which has the value 1 / sqrt(their number)."""
        self._dense = dense.astype(np.float64)
        self._num_columns = num_columns
        counts = np.array([len(each) for each in columns] or [0] * len(dense), np.int64)
        self._rows = np.repeat(np.arange(len(dense)), counts)
        self._columns = np.concatenate([*columns, np.zeros(0, np.int64)])
        self._values = np.repeat(1 / np.sqrt(np.maximum(counts, 1)), counts)

    def times(self, weights: Matrix) -> Matrix:
        """[N]: each prompt's features by the weights."""
        split, count = self._dense.shape[1], len(self._dense)
        entries = weights[split:][self._columns] * self._values
        found: Matrix = self._dense @ weights[:split] + np.bincount(self._rows, entries, count)
        return found

    def transposed_times(self, values: Matrix) -> Matrix:
        """[D + columns]: each feature by the values of the prompts."""
        entries = values[self._rows] * self._values
        sums = np.bincount(self._columns, entries, self._num_columns)
        found: Matrix = np.concatenate([self._dense.T @ values, sums])
        return found

    def squares(self) -> Matrix:
        """[D + columns]: the sum of each feature's squares."""
        sums = np.bincount(self._columns, self._values**2, self._num_columns)
        return np.concatenate([(self._dense**2).sum(0), sums])


def ridge(rows: Rows, targets: Array, penalty: Matrix) -> tuple[Matrix, float]:
    """Weights and bias that minimise the squared error plus the penalty per feature."""
    count, base = len(targets), float(targets.mean())
    mean = rows.transposed_times(np.ones(count)) / count

    def normal(weights: Matrix) -> Matrix:  # (Xᵀ X + penalty) weights, with X centred
        product = rows.times(weights) - mean @ weights
        found: Matrix = rows.transposed_times(product) - mean * product.sum() + penalty * weights
        return found

    scale = 1 / (rows.squares() - count * mean**2 + penalty)
    weights = np.zeros(len(penalty))
    centred = (targets - base).astype(np.float64)
    residual = rows.transposed_times(centred) - mean * centred.sum()
    direction = scaled = scale * residual
    size = first = float(residual @ scaled)
    for _ in range(MAX_ITERATIONS):
        if size <= TOLERANCE**2 * first:
            break
        image = normal(direction)
        step = size / float(direction @ image)
        weights = weights + step * direction
        residual = residual - step * image
        scaled = scale * residual
        size, before = float(residual @ scaled), size
        direction = scaled + size / before * direction
    return weights, base - float(mean @ weights)
