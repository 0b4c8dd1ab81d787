"""Ranks as threads of one process, and what all of them give together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import TypeVar

import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.models.loaded import LoadedModel, load_model
from backend.parallel.group import Group
from backend.parallel.part import ModelPart

LIMIT_S = 100
R = TypeVar("R")
Shared = tuple[list[Tensor | None], threading.Barrier]


class ThreadGroup(Group):
    """Sums and gathers by a list that the threads of a stage share; stages pass on by queues."""

    def __init__(self, rank: int, size: int, shared: Shared, queues: list[Queue[Tensor]]) -> None:
        self._parts, self._barrier = shared
        self.rank, self.size, self.width = rank, size, len(self._parts)
        self.num_stages = size // self.width
        self.stage, self.rank_in_stage = divmod(rank, self.width)
        self._queues = queues
        self._error: Exception | None = None

    def sum(self, part: Tensor | None, spare: Tensor) -> Tensor:
        return torch.stack(self._exchange(spare.zero_() if part is None else part)).sum(0)

    def gather(self, part: Tensor) -> list[Tensor]:
        parts = self._exchange(part)
        return parts if self.rank == 0 else []

    def receive(self, hidden: Tensor) -> Tensor:
        return self._queues[self.rank].get(timeout=LIMIT_S)

    def pass_on(self, hidden: Tensor) -> None:
        self._queues[(self.rank + self.width) % self.size].put(hidden.clone())

    def _exchange(self, part: Tensor) -> list[Tensor]:
        self._parts[self.rank_in_stage] = part.clone()
        self._barrier.wait(LIMIT_S)
        found = [each for each in self._parts if each is not None]
        self._barrier.wait(LIMIT_S)
        return found


def groups(width: int, num_stages: int = 1) -> list[ThreadGroup]:
    size = width * num_stages
    queues: list[Queue[Tensor]] = [Queue() for _ in range(size)]
    stages: list[Shared] = [([None] * width, threading.Barrier(width)) for _ in range(num_stages)]
    return [ThreadGroup(rank, size, stages[rank // width], queues) for rank in range(size)]


def on_all(ranks: list[LoadedModel], run: Callable[[LoadedModel], R]) -> list[R]:
    """What `run` gives on each rank, all at the same time."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


def load_ranks(
    config: EngineConfig, width: int, num_stages: int = 1, *, splits_experts: bool = False
) -> list[LoadedModel]:
    parts = [ModelPart(group, splits_experts=splits_experts) for group in groups(width, num_stages)]
    return [load_model(config, part=part) for part in parts]
