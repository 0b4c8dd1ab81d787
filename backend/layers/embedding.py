"""Token embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.config import Scalars
from backend.kernels.rms_norm import rms_norm


class Embedding:
    """Rows of a table [vocab, D]; kept in the checkpoint's dtype or a tied head's, looked up in the model's.

    Rows are multiplied by `scale`.
    """

    __slots__ = ("dtype", "scale", "weight")

    def __init__(self, weight: Tensor, dtype: torch.dtype, scale: float = 1.0) -> None:
        self.weight = weight
        self.dtype = dtype
        self.scale = scale

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[T] → [T, D], a new tensor that the caller may change."""
        rows = F.embedding(token_ids, self.weight).to(self.dtype)
        return rows if self.scale == 1 else rows.mul_(self.scale)


def rounded(scale: float, dtype: torch.dtype) -> float:
    """The scale of a family that keeps it in the table's dtype."""
    return torch.tensor(scale, dtype=dtype).item()


class NormedEmbedding(Embedding):
    """Rows of a table, each with RMSNorm without weights."""

    __slots__ = ("eps", "ones")

    def __init__(self, weight: Tensor, dtype: torch.dtype, eps: float) -> None:
        super().__init__(weight, dtype)
        self.eps = eps
        self.ones = torch.ones(weight.shape[1], dtype=dtype, device=weight.device)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """The same as of its base."""
        return rms_norm(super().__call__(token_ids), self.ones, self.eps)


def embedding_of(
    table: Tensor, stored: torch.dtype, dtype: torch.dtype, scalars: Scalars, eps: float
) -> Embedding:
    """The embedding of a family's tokens, looked up in `dtype`; the checkpoint's table is `stored`."""
    if scalars.embedding_norm:
        return NormedEmbedding(table, dtype, eps)
    scale = scalars.embedding
    return Embedding(table, dtype, rounded(scale, stored) if scalars.rounds_embedding else scale)
