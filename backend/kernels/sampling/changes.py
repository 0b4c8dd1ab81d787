"""Changes of logits whose arrays go to a device together, in one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.upload import upload


@dataclass(frozen=True, slots=True)
class Change:
    """What `apply` does to logits, in place, with arrays of indices, words or float32, as tensors."""

    apply: Callable[..., None]
    arrays: Sequence[NDArray[Any]]


def apply_changes(logits: Tensor, changes: Sequence[Change]) -> None:
    """Apply to `logits` [R, V] in order. The host waits for nothing."""
    if not changes:
        return
    arrays = [array for change in changes for array in change.arrays]
    if uses_triton(logits):  # indices as words
        arrays = [array.astype(np.int32) if array.dtype == np.int64 else array for array in arrays]
    tensors = iter(upload(arrays, logits.device))
    for change in changes:
        change.apply(logits, *(next(tensors) for _ in change.arrays))
