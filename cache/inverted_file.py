"""Many vectors in a FAISS inverted file (IVF), which can delete; a thread builds a finer one as it grows."""

from __future__ import annotations

import ctypes
import importlib
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from threading import Lock, Thread
from typing import Any

import numpy as np
from numpy import float32, int64
from numpy.typing import NDArray

ONE_LIST_ROWS = 20_000
"""Up to here there is one list, compared as a whole."""
GROWTH = 2
"""How many times as many rows lead to a new index with more lists."""
ROWS_PER_LIST = 64
"""When it is built: short lists are searched with more recall in less time."""
MAX_LISTS = 4096
"""More take too long to train, and to choose among for each search."""
ROWS_TO_TRAIN_PER_LIST = 24
TRAINING_STEPS = 5
SEARCHED_SHARE = 1 / 42
"""The share of the lists that a search reads; never fewer than MIN_SEARCHED of them."""
MIN_SEARCHED = 32
CHUNK_ROWS = 512
"""Rows that the thread reads while it holds the lock: searches wait less than a millisecond."""


class InvertedFile:
    """Vectors of unit length by a number; stored in 16 bits."""

    def __init__(self, dimensions: int) -> None:
        self._dimensions = dimensions
        self._lock = Lock()  # of the index and the log
        self._index = _new_index(dimensions, 1, np.empty((0, dimensions), float32))
        self._max_rows = ONE_LIST_ROWS
        self._log: set[int] | None = None  # numbers added or removed during a rebuild
        self._thread: Thread | None = None

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, number: int, vector: NDArray[float32]) -> None:
        """Add one vector, (dimensions,)."""
        with self._lock:
            self._index.add_with_ids(vector[None], np.array([number]))
            self._changed(number)
        if self._log is None and len(self) > self._max_rows:
            self._log = set()
            self._thread = Thread(target=self._rebuild_all, name="cache index", daemon=True)
            self._thread.start()

    def remove(self, number: int) -> None:
        """Remove one vector; does nothing when there is none."""
        with self._lock:
            _remove(self._index, number)
            self._changed(number)

    def search(self, vector: NDArray[float32], count: int) -> list[tuple[int, float, NDArray[float32]]]:
        """Number, cosine and vector of the nearest `count`, best first."""
        with self._lock:
            cosines, numbers = self._index.search(vector[None], count)
            return [
                (int(number), float(cosine), self._index.reconstruct(int(number)))
                for number, cosine in zip(numbers[0], cosines[0], strict=True)
                if number >= 0
            ]

    def vector(self, number: int) -> NDArray[float32] | None:
        """One vector, if it is there."""
        with self._lock:
            return _vector(self._index, number)

    def wait_until_built(self) -> None:
        """Wait for a rebuild that is under way."""
        if self._thread is not None:
            self._thread.join()

    def _changed(self, number: int) -> None:
        if self._log is not None:
            self._log.add(number)

    def _rebuild_all(self) -> None:
        """Build until the index is fine enough for what was added meanwhile."""
        while self._log is not None:
            self._rebuild()
        _release_memory()

    def _rebuild(self) -> None:
        """Copy all vectors to a new index, then what has changed meanwhile, until little is left to copy."""
        with self._lock:
            numbers = _numbers(self._index)
            self._log = set()  # what is in the log by now is in the numbers too
        num_lists = min(MAX_LISTS, max(1, len(numbers) // ROWS_PER_LIST))
        drawn = np.random.default_rng(0).permutation(numbers)[: ROWS_TO_TRAIN_PER_LIST * num_lists]
        built = _new_index(self._dimensions, num_lists, self._sample(drawn))
        self._copy(numbers.tolist(), built)
        while not self._catch_up(built):
            pass

    def _catch_up(self, built: Any) -> bool:  # noqa: ANN401 - faiss has no types
        """Apply the changes since the last call; True when `built` has taken the index's place."""
        with self._lock:
            changes, self._log = self._log or set(), set()
        for number in changes:
            _remove(built, number)
        self._copy(changes, built)
        with self._lock:
            if len(self._log) > 0:
                return False
            self._index, num_lists = built, int(built.nlist)
            fits = max(ONE_LIST_ROWS, GROWTH * ROWS_PER_LIST * num_lists)
            self._max_rows = fits if num_lists < MAX_LISTS else sys.maxsize
            self._log = set() if len(self) > self._max_rows else None
        return True

    def _sample(self, numbers: NDArray[int64]) -> NDArray[float32]:
        chunks = [numbers[start : start + CHUNK_ROWS] for start in range(0, len(numbers), CHUNK_ROWS)]
        return np.concatenate([self._read(chunk.tolist())[1] for chunk in chunks])

    def _copy(self, numbers: Iterable[int], built: Any) -> None:  # noqa: ANN401
        """Add the vectors that are still there to `built`."""
        left = iter(numbers)
        while chunk := list(islice(left, CHUNK_ROWS)):
            found, vectors = self._read(chunk)
            if found:
                built.add_with_ids(vectors, np.array(found))

    def _read(self, numbers: Iterable[int]) -> tuple[list[int], NDArray[float32]]:
        """The vectors that are still there, and their numbers."""
        with self._lock:
            read = ((number, _vector(self._index, number)) for number in numbers)
            rows = {number: vector for number, vector in read if vector is not None}
        return list(rows), np.array(list(rows.values()), float32).reshape(len(rows), self._dimensions)


def load_faiss() -> Any:  # noqa: ANN401 - its stubs lack what is used here
    """The module: slow to import, and most caches never need it."""
    return importlib.import_module("faiss")


def _new_index(dimensions: int, num_lists: int, sample: NDArray[float32]) -> Any:  # noqa: ANN401
    """An empty index with up to `num_lists` lists, trained on `sample`, which may be empty."""
    faiss = load_faiss()
    if not len(sample):
        sample = np.zeros((1, dimensions), float32)
    num_lists = min(num_lists, len(sample))
    faiss.omp_set_num_threads(1)
    coarse = faiss.IndexFlatIP(dimensions)
    sixteen_bits = faiss.ScalarQuantizer.QT_fp16
    index = faiss.IndexIVFScalarQuantizer(
        coarse, dimensions, num_lists, sixteen_bits, faiss.METRIC_INNER_PRODUCT, False
    )
    coarse.this.disown()
    index.own_fields = True
    index.cp.min_points_per_centroid = 1  # no warning
    index.cp.niter = TRAINING_STEPS
    index.nprobe = max(MIN_SEARCHED, math.ceil(num_lists * SEARCHED_SHARE))
    index.train(sample)
    index.set_direct_map_type(faiss.DirectMap.Hashtable)
    return index


def _release_memory() -> None:
    """Give what the old index had back to the system: glibc keeps it else."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _remove(index: Any, number: int) -> None:  # noqa: ANN401
    faiss = load_faiss()
    numbers = np.array([number], int64)
    index.remove_ids(faiss.IDSelectorArray(1, faiss.swig_ptr(numbers)))


def _vector(index: Any, number: int) -> NDArray[float32] | None:  # noqa: ANN401
    try:
        found: NDArray[float32] = index.reconstruct(number)
    except RuntimeError:  # it has been removed
        return None
    return found


def _numbers(index: Any) -> NDArray[int64]:  # noqa: ANN401
    """The numbers of all vectors."""
    faiss = load_faiss()
    lists = index.invlists
    sizes = [lists.list_size(each) for each in range(lists.nlist)]
    parts = [faiss.rev_swig_ptr(lists.get_ids(each), size).copy() for each, size in enumerate(sizes) if size]
    return np.concatenate(parts) if parts else np.empty(0, int64)
