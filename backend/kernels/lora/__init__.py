"""Low-rank adapters on a linear layer: y[t] += up[slot[t]]ᵀ (down[slot[t]] x[t]), for rows with an adapter.

x [T, K], y [T, N], slots of down [P·R, K] and up [P·R, N] for P stacked parts; in place. Bound: memory, each
active slot is read once. Reference: reference.py, the CPU path; kernel.py needs Triton and a GPU.
"""

from __future__ import annotations

from torch import Tensor

from backend.kernels.lora import reference
from backend.kernels.lora.rows import AdapterRows, rows_of_one
from backend.kernels.lora.weights import Factors, SlotWeights

__all__ = ["AdapterRows", "Factors", "SlotWeights", "add_adapters", "rows_of_one"]


def add_adapters(y: Tensor, x: Tensor, weights: SlotWeights, rows: AdapterRows) -> None:
    """Add each row's adapter to `y`; rows without one are not touched."""
    assert x.shape[0] == y.shape[0] == len(rows.slots)
    if x.is_cuda:
        # Here, because Triton comes with CUDA builds of torch only.
        from backend.kernels.lora.kernel import add_adapters as add_on_gpu

        add_on_gpu(y, x, weights, rows)
        return
    reference.add_adapters(y, x, weights, rows)
