"""From a device to the host: tensors as lists, in one copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backend.kernels.device import uses_triton


class Download:
    """A copy to the host that has begun: `read` waits for it."""

    __slots__ = ("_block", "_copied", "_tensors")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Tensors of one or two dimensions. Integers must be below 2^53."""
        self._tensors = tensors
        self._block: Tensor | None = None
        self._copied: torch.cuda.Event | None = None
        if not uses_triton(tensors[0]):
            return
        # float64 holds float32 and such integers exactly.
        self._block = torch.cat([tensor.double().flatten() for tensor in tensors])
        if self._block.device.type == "cuda":  # the host does not wait for a copy into pinned memory
            host = torch.empty(self._block.shape, dtype=self._block.dtype, pin_memory=True)
            self._block = host.copy_(self._block, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def read(self) -> list[list[Any]]:
        """The tensors as lists."""
        if self._block is None:
            return [tensor.tolist() for tensor in self._tensors]
        if self._copied is not None:
            self._copied.synchronize()
        values = iter(self._block.tolist())
        return [_shaped(each, [next(values) for _ in range(each.numel())]) for each in self._tensors]


def download(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """The tensors as lists, at once."""
    return Download(tensors).read()


def _shaped(tensor: Tensor, values: list[Any]) -> list[Any]:
    if not tensor.is_floating_point():
        values = list(map(bool if tensor.dtype is torch.bool else int, values))
    if tensor.dim() == 1:
        return values
    width = math.prod(tensor.shape[1:])
    return [values[i * width : (i + 1) * width] for i in range(len(tensor))]
