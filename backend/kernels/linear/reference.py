"""Linear in torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


class PlainWeight:
    """The weight as it is in the checkpoint: [N, K]."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        return F.linear(x, self.weight, self.bias)
