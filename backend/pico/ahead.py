"""Data of the coming steps, made by other processes while this one computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from torch.utils.data import DataLoader, Dataset

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
    loader: DataLoader[T] = DataLoader(
        _Made(make),
        sampler=indices,
        batch_size=None,
        collate_fn=_as_it_is,
        num_workers=workers,
        prefetch_factor=_AHEAD,
        multiprocessing_context="fork",
    )
    return iter(loader)


def _as_it_is(made: T) -> T:
    return made
