"""The nearest vectors inside one partition, exactly: one matrix per partition, compared as a whole.

Most partitions are small, since a system prompt and all earlier turns are part of their identity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy import float16, float32
from numpy.typing import NDArray


class Neighbour(NamedTuple):
    """A key near a vector, with its own vector."""

    key: bytes
    cosine: float
    vector: NDArray[float32]


class VectorIndex:
    """Keys by partition and vector."""

    def __init__(self) -> None:
        self._partitions: dict[bytes, _Partition] = {}

    def add(self, partition: bytes, key: bytes, vector: NDArray[float16]) -> None:
        """Add or replace the vector of `key`, of unit length."""
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = _Partition(len(vector))
        found.add(key, vector)

    def remove(self, partition: bytes, key: bytes) -> None:
        """Remove the vector of `key`; does nothing when there is none."""
        found = self._partitions.get(partition)
        if found is not None and found.remove(key):
            del self._partitions[partition]

    def search(self, partition: bytes, vector: NDArray[float32], count: int) -> list[Neighbour]:
        """The `count` nearest keys of the partition, best first."""
        found = self._partitions.get(partition)
        return [] if found is None else found.search(vector, count)


class _Partition:
    """Rows in no order: a removed one is replaced by the last."""

    __slots__ = ("_keys", "_rows", "_vectors")

    def __init__(self, dimensions: int) -> None:
        self._keys: list[bytes] = []
        self._rows: dict[bytes, int] = {}
        self._vectors = np.empty((1, dimensions), float16)

    def add(self, key: bytes, vector: NDArray[float16]) -> None:
        row = self._rows.get(key)
        if row is None:
            row = len(self._keys)
            if row == len(self._vectors):
                self._vectors = np.concatenate([self._vectors, np.empty_like(self._vectors)])
            self._keys.append(key)
            self._rows[key] = row
        self._vectors[row] = vector

    def remove(self, key: bytes) -> bool:
        """Remove the row of `key`. Returns whether none is left."""
        row = self._rows.pop(key, None)
        if row is not None:
            last = self._keys.pop()
            if last != key:
                self._keys[row] = last
                self._rows[last] = row
                self._vectors[row] = self._vectors[len(self._keys)]
        return not self._keys

    def search(self, vector: NDArray[float32], count: int) -> list[Neighbour]:
        vectors = self._vectors[: len(self._keys)].astype(float32)
        cosines = vectors @ vector
        count = min(count, len(cosines))
        best = np.argpartition(-cosines, count - 1)[:count]
        found = [Neighbour(self._keys[row], float(cosines[row]), vectors[row]) for row in best]
        return sorted(found, key=lambda each: -each.cosine)
