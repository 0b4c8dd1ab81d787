"""Prefetches training data in worker processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torch.utils.data import DataLoader, Dataset

from backend.parent_death_signal import die_with

T = TypeVar("T")

_PREFETCH_PER_WORKER = 4
"""Results that each worker prefetches."""


class _MapDataset(Dataset[T]):
    """Adapts `make` to torch's DataLoader."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make

    def __getitem__(self, index: int) -> T:
        return self._make(index)


def prefetched(make: Callable[[int], T], indices: Sequence[int], workers: int) -> Iterator[T]:
    """Yield `make(index)` for each index, in order, from `workers` forked processes (0: in this process).

    The workers see the state of this process at the time of the call.
    """
    if workers == 0:
        return map(make, indices)
    begin = die_with(os.getpid())  # a worker whose parent dies would block forever on its output queue
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores
        loader: DataLoader[T] = DataLoader(
            _MapDataset(make),
            sampler=indices,
            batch_size=None,
            collate_fn=_identity,
            num_workers=workers,
            prefetch_factor=_PREFETCH_PER_WORKER,
            multiprocessing_context="fork",
            worker_init_fn=lambda _: begin(),
        )
        return iter(loader)


def _identity(made: T) -> T:
    return made
