"""All experts of a layer in two tensors, for a GPU: grouped products need no second copy and no host."""

from __future__ import annotations

import torch
from torch import Tensor


class StackedExperts:
    """Memory for E experts' matrices, filled while the layer is built."""

    __slots__ = ("down", "gate_up")

    def __init__(
        self, num_experts: int, width: int, features: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`width` I and `features` D."""
        self.gate_up = torch.empty(num_experts, 2 * width, features, dtype=dtype, device=device)
        self.down = torch.empty(num_experts, features, width, dtype=dtype, device=device)

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Σ_k weights[t, k] · expert[chosen[t, k]](x[t]): x [T, D], chosen and weights [T, k] → [T, D]."""
        # Imported here: only CUDA builds of torch bring Triton.
        from backend.kernels.experts.kernel import run_experts

        return run_experts(x, chosen, weights, self.gate_up, self.down)
