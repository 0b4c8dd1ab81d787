"""Linear layer over a weight that was laid out for the device; adapters will add their low-rank term here."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.linear import WeightLayout, pack


class Linear:
    """y = x Wᵀ + b; several projections of one input are stacked into one weight."""

    __slots__ = ("_multiply", "in_features", "out_features")

    def __init__(self, weights: list[Tensor], biases: list[Tensor] | None, layout: WeightLayout) -> None:
        """`weights` [N_i, K] and `biases` [N_i] are stacked in order; both may be freed afterwards."""
        weight = torch.cat(weights)  # copies even one: the checkpoint's file is mapped, and aligned by chance
        bias = None if not biases else torch.cat(biases)
        self.out_features, self.in_features = weight.shape
        self._multiply = pack(weight, bias, layout)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        return self._multiply(x)
