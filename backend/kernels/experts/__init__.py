"""Mixture of experts: y[t] = Σ_k weight[t, k] · expert[chosen[t, k]](x[t]), SwiGLU experts.

x [T, D]; chosen [T, k] int64; weights [T, k] → [T, D] in x.dtype. Each active expert's weights are read once.
Bound: memory until tokens outnumber experts several times. Reference: reference.py, one expert after the
other. All at once: fused.py runs loop.py, one Numba loop for few tokens of a small model on a CPU; stacked.py
runs kernel.py, grouped products in Triton, for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.experts import reference
from backend.kernels.experts.fused import FusedExperts
from backend.kernels.experts.stacked import BiasedExperts, ExpertMatrices, StackedExperts
from backend.kernels.lora import AdapterRows, SlotWeights
from backend.kernels.swiglu import swiglu

__all__ = [
    "BiasedExperts",
    "ExpertMatrices",
    "ExpertWeight",
    "FusedExperts",
    "Gate",
    "StackedExperts",
    "choose_experts",
    "run_experts",
]

Gate = Callable[[Tensor], Tensor]
"""Gates and ups [T, 2 I], gates in the left half → [T, I]."""


class ExpertWeight(Protocol):
    """One expert's matrix, and the LoRA adapters of its layer."""

    adapters: SlotWeights | None

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """x [T, K] → [T, N]; `rows` says which of the T rows use an adapter."""
        ...


def choose_experts(logits: Tensor, top_k: int, *, normalise: bool) -> tuple[Tensor, Tensor]:
    """The k experts of each token with the largest softmax of the router's logits [T, E], and their shares.

    Shares [T, k] float32, divided by their sum with `normalise`, and experts [T, k] int64.
    """
    if uses_triton(logits):
        from backend.kernels.experts.kernel import choose_experts as choose_on_gpu

        return choose_on_gpu(logits, top_k, normalise=normalise)
    return reference.choose_experts(logits, top_k, normalise=normalise)


def run_experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Sequence[ExpertWeight],
    down: Sequence[ExpertWeight],
    rows: AdapterRows | None = None,
    gate: Gate = swiglu,
) -> Tensor:
    """Send every token through its experts; `gate_up` and `down` hold one weight per expert.

    `rows` says which of the T tokens use an adapter; `gate` is what an expert computes between its matrices.
    """
    assert chosen.shape == weights.shape and chosen.shape[0] == x.shape[0] and len(gate_up) == len(down)
    return reference.run_experts(x, chosen, weights, gate_up, down, rows, gate)
