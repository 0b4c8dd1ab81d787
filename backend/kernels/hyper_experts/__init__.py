"""HyperMoE's adapters: y[t] = silu(x[t] · down[set[t]]) · up[set[t]].

x [T, D]; numbers [T] int64, each token's set of chosen experts; down [S, D, r]; up [S, r, D] → [T, D].
A token's result does not depend on its neighbours. Bound: memory of the gathered adapters.
Reference: reference.py.
"""

from __future__ import annotations

from torch import Tensor

from backend.kernels.hyper_experts import reference


def run_hyper_experts(x: Tensor, numbers: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """Send every token through the adapter of its set."""
    assert numbers.shape == x.shape[:1] and down.shape == up.mT.shape and down.shape[1] == x.shape[1]
    return reference.run_hyper_experts(x, numbers, down, up)
