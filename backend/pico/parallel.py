"""Data parallelism over single-threaded processes.

On a busy machine two processes with one thread are faster than one with two threads: they synchronise once
per step instead of once per operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn


def join(rank: int, workers: int, folder: Path) -> None:
    """Join the process group of `workers` processes; does nothing for one."""
    torch.set_num_threads(1 if workers > 1 else torch.get_num_threads())
    if workers > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder.resolve() / 'rendezvous'}", rank=rank, world_size=workers
        )


def rank_and_workers() -> tuple[int, int]:
    """Return this process's rank and the group's size; (0, 1) outside of a group."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def partition(costs: Sequence[int]) -> list[int]:
    """Return the indices of this process's share of the work, balanced by cost, the most expensive first."""
    rank, workers = rank_and_workers()
    loads = [0] * workers
    mine = []
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        owner = loads.index(min(loads))
        loads[owner] += costs[index]
        if owner == rank:
            mine.append(index)
    return mine


def all_reduce(values: Tensor) -> Tensor:
    """Sum over all processes, in place."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def all_reduce_gradients(model: nn.Module) -> None:
    """Replace every gradient by its sum over all processes."""
    if not dist.is_initialized():
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    flat = all_reduce(torch.cat([gradient.flatten() for gradient in gradients]))
    parts = torch.split(flat, [gradient.numel() for gradient in gradients])
    for parameter, part in zip(model.parameters(), parts, strict=True):
        parameter.grad = part.view_as(parameter)
