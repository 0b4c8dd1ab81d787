"""Some of a layer's experts: each rank computes its own for all tokens, and the sum of all ranks counts."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.kernels.lora import AdapterRows
from backend.layers.moe import MoE


class PartExperts(MoE):
    """A rank's experts behind the router of all."""

    __slots__ = ("first", "last")

    def __init__(self, part: MoE, own: range) -> None:
        """`part` has the experts `own`, and chooses among all."""
        for name in MoE.__slots__:
            setattr(self, name, getattr(part, name))
        self.first, self.last = own.start, own.stop - 1
        if own.start:
            self.extra_term = None  # one rank adds it

    def _run(self, x: Tensor, chosen: Tensor, weights: Tensor, rows: AdapterRows | None) -> Tensor:
        is_own = (chosen >= self.first) & (chosen <= self.last)
        tokens = is_own.nonzero()[:, 0]
        y = torch.zeros_like(x)
        if len(tokens):
            pairs = chosen[is_own][:, None] - self.first, weights[is_own][:, None]
            selected = None if rows is None else rows.select(tokens.cpu().numpy())
            y.index_add_(0, tokens, super()._run(x.index_select(0, tokens), *pairs, selected))
        return y
