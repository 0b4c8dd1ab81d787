"""From a device to the host: tensors as lists, in one copy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from backend.kernels.device import uses_triton


def download(tensors: Sequence[Tensor]) -> list[list[Any]]:
    """The tensors, of one or two dimensions, as lists. Integers must be below 2^53."""
    if not uses_triton(tensors[0]):
        return [tensor.tolist() for tensor in tensors]
    # float64 holds float32 and such integers exactly.
    values = iter(torch.cat([tensor.double().flatten() for tensor in tensors]).tolist())
    return [_shaped(tensor, [next(values) for _ in range(tensor.numel())]) for tensor in tensors]


def _shaped(tensor: Tensor, values: list[Any]) -> list[Any]:
    if not tensor.is_floating_point():
        values = list(map(bool if tensor.dtype is torch.bool else int, values))
    if tensor.dim() == 1:
        return values
    width = math.prod(tensor.shape[1:])
    return [values[i * width : (i + 1) * width] for i in range(len(tensor))]
