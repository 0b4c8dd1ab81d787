"""RMSNorm with its weight."""

from __future__ import annotations

from torch import Tensor

from backend.kernels.rms_norm import add_rms_norm, rms_norm


class RMSNorm:
    """RMSNorm over the last dimension; weight [D], or [H, D] for weights per head."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """[..., D] → a new tensor of the same shape; `added` is added to `x` in place before."""
        if added is None:
            return rms_norm(x, self.weight, self.eps)
        return add_rms_norm(x, added, self.weight, self.eps)
