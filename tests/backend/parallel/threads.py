"""Ranks as threads of one process, and what all of them give together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.models.loaded import LoadedModel, load_model
from backend.parallel.group import Group
from backend.parallel.part import ModelPart

LIMIT_S = 100
R = TypeVar("R")


class ThreadGroup(Group):
    """Sums and gathers by a list that all threads share."""

    def __init__(self, rank: int, parts: list[Tensor | None], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(parts)
        self._parts, self._barrier = parts, barrier
        self._error: Exception | None = None

    def sum(self, part: Tensor | None, spare: Tensor) -> Tensor:
        return torch.stack(self._exchange(spare.zero_() if part is None else part)).sum(0)

    def gather(self, part: Tensor) -> list[Tensor]:
        parts = self._exchange(part)
        return parts if self.rank == 0 else []

    def _exchange(self, part: Tensor) -> list[Tensor]:
        self._parts[self.rank] = part.clone()
        self._barrier.wait(LIMIT_S)
        found = [each for each in self._parts if each is not None]
        self._barrier.wait(LIMIT_S)
        return found


def groups(size: int) -> list[ThreadGroup]:
    parts: list[Tensor | None] = [None] * size
    barrier = threading.Barrier(size)
    return [ThreadGroup(rank, parts, barrier) for rank in range(size)]


def on_all(ranks: list[LoadedModel], run: Callable[[LoadedModel], R]) -> list[R]:
    """What `run` gives on each rank, all at the same time."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def load_ranks(config: EngineConfig, size: int) -> list[LoadedModel]:
    return [load_model(config, part=ModelPart(group)) for group in groups(size)]
