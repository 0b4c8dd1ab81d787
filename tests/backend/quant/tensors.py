"""Tensors in memory in place of a checkpoint's files."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from backend.errors import CheckpointError


class MemoryTensors:
    """Tensors by name, as the readers see them."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def shape(self, name: str) -> tuple[int, ...] | None:
        return tuple(self.tensors[name].shape) if name in self.tensors else None

    def read(self, name: str, dtypes: Collection[torch.dtype]) -> Tensor:
        if self.tensors[name].dtype not in dtypes:
            raise self.error(name, f"is {self.tensors[name].dtype}")
        return self.tensors[name]

    def error(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(f"file: {name!r} {problem}")


def stored(module: str, tensors: dict[str, Tensor]) -> MemoryTensors:
    """The tensors of one module, given by the ending of their names."""
    return MemoryTensors({module + ending: tensor for ending, tensor in tensors.items()})
