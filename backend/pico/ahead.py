"""Data of the coming steps, made by other processes while this one computes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torch.utils.data import DataLoader, Dataset

from backend.lifeline import die_with

T = TypeVar("T")

_AHEAD = 4
"""Results that each process has made before they are asked for."""


class _Made(Dataset[T]):
    """What `make` gives, as DataLoader wants it."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make

    def __getitem__(self, index: int) -> T:
        return self._make(index)


def made_ahead(make: Callable[[int], T], indices: Sequence[int], workers: int) -> Iterator[T]:
    """`make` of each index, in their order: by `workers` processes beside this one, or by this one for 0.

    The processes see everything as it is now.
    """
    if workers == 0:
        return map(make, indices)
    begin = die_with(os.getpid())  # left alone, a process waits for ever to be rid of its results
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more processes than cores
        loader: DataLoader[T] = DataLoader(
            _Made(make),
            sampler=indices,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=workers,
            prefetch_factor=_AHEAD,
            multiprocessing_context="fork",
            worker_init_fn=lambda _: begin(),
        )
        return iter(loader)


def _as_it_is(made: T) -> T:
    return made
