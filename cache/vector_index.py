"""The nearest vectors inside one partition: a matrix while it is small, then an inverted file.

Most partitions are small, since a system prompt and all earlier turns are part of their identity.
"""

from __future__ import annotations

from threading import Thread
from typing import NamedTuple

import numpy as np
from numpy import float16, float32
from numpy.typing import NDArray

from cache.inverted_file import InvertedFile, load_faiss

MAX_MATRIX_ROWS = 512
"""A larger matrix takes longer than a tenth of a millisecond to compare."""


class Neighbour(NamedTuple):
    """A key near a vector, with its own vector."""

    key: bytes
    cosine: float
    vector: NDArray[float32]


class VectorIndex:
    """Keys by partition and vector."""

    def __init__(self) -> None:
        self._partitions: dict[bytes, _Matrix | _Lists] = {}

    def add(self, partition: bytes, key: bytes, vector: NDArray[float16]) -> None:
        """Add or replace the vector of `key`, of unit length. Raises ValueError for another length."""
        found = self._partitions.get(partition)
        if found is not None and found.num_dimensions != len(vector):
            raise ValueError(f"{len(vector)} dimensions instead of {found.num_dimensions}")
        if found is None:
            found = self._partitions[partition] = _Matrix(len(vector))
        elif isinstance(found, _Matrix) and len(found) == MAX_MATRIX_ROWS:
            found = self._partitions[partition] = _Lists(found)
        elif len(found) == MAX_MATRIX_ROWS // 2:
            Thread(target=load_faiss, daemon=True).start()  # before it is needed
        found.add(key, vector)

    def remove(self, partition: bytes, key: bytes) -> None:
        """Remove the vector of `key`; does nothing when there is none."""
        found = self._partitions.get(partition)
        if found is not None:
            found.remove(key)
            if not len(found):
                del self._partitions[partition]

    def search(self, partition: bytes, vector: NDArray[float32], count: int) -> list[Neighbour]:
        """The `count` nearest keys of the partition, best first."""
        found = self._partitions.get(partition)
        return [] if found is None else found.search(vector, count)

    def vector(self, partition: bytes, key: bytes) -> NDArray[float16] | None:
        """The vector of `key`, if it is there."""
        found = self._partitions.get(partition)
        return None if found is None else found.vector(key)

    def wait_until_built(self) -> None:
        """Wait for indexes that are being built, for measurements: searches are right meanwhile too."""
        for partition in self._partitions.values():
            if isinstance(partition, _Lists):
                partition.file.wait_until_built()


class _Lists:
    """A large partition."""

    def __init__(self, rows: _Matrix) -> None:
        self.file = InvertedFile(rows.num_dimensions)
        self.num_dimensions = rows.num_dimensions
        self._keys: dict[int, bytes] = {}  # by their first 63 bits
        for key, vector in zip(rows.keys, rows.vectors, strict=False):
            self.add(key, vector)

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes, vector: NDArray[float16]) -> None:
        number = _number(key)
        if self._keys.get(number) is not None:
            self.file.remove(number)
        self._keys[number] = key
        self.file.add(number, vector.astype(float32))

    def remove(self, key: bytes) -> None:
        number = _number(key)
        if self._keys.get(number) == key:
            del self._keys[number]
            self.file.remove(number)

    def vector(self, key: bytes) -> NDArray[float16] | None:
        number = _number(key)
        found = self.file.vector(number) if self._keys.get(number) == key else None
        return None if found is None else found.astype(float16)

    def search(self, vector: NDArray[float32], count: int) -> list[Neighbour]:
        found = self.file.search(vector, count)
        return [Neighbour(self._keys[number], cosine, known) for number, cosine, known in found]


def _number(key: bytes) -> int:
    """A key is a SHA-256: two of a million share this with a probability of 1 to 10 million."""
    return int.from_bytes(key[:8], "little") >> 1


class _Matrix:
    """A small partition: rows in no order, a removed one is replaced by the last."""

    __slots__ = ("_rows", "keys", "num_dimensions", "vectors")

    def __init__(self, dimensions: int) -> None:
        self.num_dimensions = dimensions
        self.keys: list[bytes] = []
        self.vectors = np.empty((1, dimensions), float16)  # has spare rows at its end
        self._rows: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: bytes, vector: NDArray[float16]) -> None:
        row = self._rows.get(key)
        if row is None:
            row = len(self.keys)
            if row == len(self.vectors):
                self.vectors = np.concatenate([self.vectors, np.empty_like(self.vectors)])
            self.keys.append(key)
            self._rows[key] = row
        self.vectors[row] = vector

    def remove(self, key: bytes) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            last = self.keys.pop()
            if last != key:
                self.keys[row] = last
                self._rows[last] = row
                self.vectors[row] = self.vectors[len(self.keys)]

    def vector(self, key: bytes) -> NDArray[float16] | None:
        row = self._rows.get(key)
        return None if row is None else self.vectors[row]

    def search(self, vector: NDArray[float32], count: int) -> list[Neighbour]:
        vectors = self.vectors[: len(self.keys)].astype(float32)
        cosines = vectors @ vector
        count = min(count, len(cosines))
        best = np.argpartition(-cosines, count - 1)[:count]
        found = [Neighbour(self.keys[row], float(cosines[row]), vectors[row]) for row in best]
        return sorted(found, key=lambda each: -each.cosine)
