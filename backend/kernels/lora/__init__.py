"""LoRA on a linear layer (arXiv:2106.09685): y[t] += up[slot[t]]ᵀ (down[slot[t]] x[t]), in place.

For the rows t that have an adapter. x [T, K], y [T, N]; per slot and for P stacked projections down [P·R, K]
and up [R, N], each projection with its own R rows of down and its own columns of up. Bound: memory, each
active slot is read once. Reference: reference.py, which a CPU also uses for 16 bits; looped is for a CPU in
float32; kernel.py is Triton, for GPUs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.lora import reference
from backend.kernels.lora.rows import AdapterRows, DeviceSlots, rows_of_one
from backend.kernels.lora.weights import Factors, SlotWeights

__all__ = [
    "AdapterRows",
    "DeviceSlots",
    "Factors",
    "SlotWeights",
    "add_adapters",
    "rows_of_one",
    "warm_up",
]


def warm_up(dtype: torch.dtype, device: torch.device) -> None:
    """Compile what adapters of this dtype need, or load the cached code; the former takes seconds, once."""
    if device.type == "cpu" and dtype is torch.float32:
        weights = SlotWeights(1, 1, [1], 1, torch.empty(0))
        rows = AdapterRows(np.zeros(1, dtype=np.int64), device)
        for value in (1.0, 0.1):  # one that bfloat16 can hold, and one that it cannot
            weights.put(0, {0: (torch.full((1, 1), value), torch.ones(1, 1))})
            add_adapters(torch.zeros(1, 1), torch.zeros(1, 1), weights, rows)


def add_adapters(y: Tensor, x: Tensor, weights: SlotWeights, rows: AdapterRows) -> None:
    """Add each row's adapter to `y` [T, N]; rows without one are not touched."""
    assert x.shape[0] == y.shape[0] == len(rows.slots)
    if uses_triton(x):
        # Imported here: only machines with a GPU have Triton.
        from backend.kernels.lora.kernel import add_adapters as add_on_gpu

        add_on_gpu(y, x, weights, rows.on_device)
        return
    copy = weights.looped
    num_rows = len(rows.slots)
    if (
        copy is not None
        and _is_flat(x, (num_rows, weights.in_features))
        and _is_flat(y, (num_rows, weights.out_features))
    ):
        copy.add_rows(y, x, rows)
        return
    reference.add_adapters(y, x, weights, rows)


def _is_flat(matrix: Tensor, shape: tuple[int, int]) -> bool:
    """Whether the loop, which only gets an address, can read it as a matrix of this shape."""
    return matrix.shape == shape and matrix.dtype is torch.float32 and matrix.is_contiguous()
