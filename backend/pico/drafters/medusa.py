"""Medusa heads (arXiv 2401.10774, Medusa-1: the target stays frozen).

Head i (1..heads) reads the target's hidden state at t, after the final norm, and proposes token t + 1 + i
(token t + 1 is the target's own). Residual blocks x + silu(Wx + b), then the target's output matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backend.pico.drafters.drafter import Drafter, ahead, candidates, divergence, round_places
from backend.pico.drafters.target import Target, View


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """config.json of Medusa heads."""

    hidden_size: int  # of the target
    heads: int = 4
    blocks: int = 2  # residual blocks per head

    @classmethod
    def of_target(cls, target: Target) -> MedusaConfig:
        """The default shape for a target."""
        return cls(target.shape.hidden_size)


class Medusa(Drafter):
    """Tensors: `heads.{i - 1}.{block}.linear.weight` [D, D] and `.bias` [D]."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.length = config.heads
        self.heads = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(config.hidden_size) for _ in range(config.blocks)))
            for _ in range(config.heads)
        )

    def loss(self, target: Target, view: View, generator: torch.Generator) -> Tensor:
        """KL to what the target says at t + i, mean over heads."""
        losses = []
        for step, head in enumerate(self.heads, start=1):
            places = round_places(view.predicts, step)
            expected = target.logits(ahead(view.hidden, step)[places])
            losses.append(divergence(target.logits(head(view.hidden[places])), expected))
        return torch.stack(losses).mean()

    @torch.no_grad()
    def drafts(self, target: Target, view: View) -> Tensor:
        """All heads at every start."""
        return torch.stack([candidates(target.logits(head(view.hidden))) for head in self.heads], dim=2)


class ResidualBlock(nn.Module):
    """x + silu(Wx + b); W starts at zero."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] → [..., D]."""
        return x + nn.functional.silu(self.linear(x))
