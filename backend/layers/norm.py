"""RMSNorm with its weight, and what some families have in its place."""

from __future__ import annotations

import torch.nn.functional as F
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


class LayerNorm:
    """LayerNorm over the last dimension (arXiv:1607.06450); weight [D], or [H, D] for weights per head."""

    __slots__ = ("bias", "eps", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self.weight, self.bias = weight, bias
        self.eps = eps

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """[..., D] → a new tensor of the same shape; `added` is added to `x` in place before."""
        x = x if added is None else x.add_(added)
        if self.weight.dim() == 1:
            return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)
        return F.layer_norm(x, x.shape[-1:], eps=self.eps).mul_(self.weight)


Norm = RMSNorm | LayerNorm


class NoNorm:
    """The residual stream itself, where a sublayer's input is not normalised."""

    __slots__ = ()

    def __call__(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """`x`, which `added` is added to in place."""
        return x if added is None else x.add_(added)


class Scale:
    """A sublayer's output times a number."""

    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Tensor) -> Tensor:
        """`x`, scaled in place."""
        return x.mul_(self.factor)
