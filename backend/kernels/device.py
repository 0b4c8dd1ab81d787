"""Which code computes a tensor: the one question that every op asks about devices."""

from __future__ import annotations

import os

import torch
from torch import Tensor

_IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def uses_triton(x: Tensor) -> bool:
    """Whether kernels in Triton compute on `x`: on a GPU, and on a CPU where Triton interprets its kernels.

    With TRITON_INTERPRET=1 in its environment a process takes the GPU's path without a GPU, slowly.
    """
    return x.is_cuda or _IS_INTERPRETED


def has_triton(device: torch.device) -> bool:
    """The same of all tensors on `device`."""
    return device.type == "cuda" or _IS_INTERPRETED
