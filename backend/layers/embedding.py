"""Token embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Embedding:
    """Rows of a table [vocab, D]; kept in the checkpoint's dtype, looked up in the model's."""

    __slots__ = ("dtype", "weight")

    def __init__(self, weight: Tensor, dtype: torch.dtype) -> None:
        self.weight = weight
        self.dtype = dtype

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[T] → [T, D], a new tensor that the caller may change."""
        return F.embedding(token_ids, self.weight).to(self.dtype)
