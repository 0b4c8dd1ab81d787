"""Medusa heads (arXiv 2401.10774, Medusa-1: the target stays frozen).

Head i (1..heads) reads the target's hidden state at t, after the final norm, and proposes token t + 1 + i
(token t + 1 is the target's own): residual blocks x + silu(Wx + b), a square matrix per head, and the
target's output matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backend.pico.drafters.drafter import Drafter, candidates, divergence, round_places, shift_left
from backend.pico.drafters.target import Target, View


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """config.json of Medusa heads."""

    hidden_size: int  # the target's
    heads: int = 4
    blocks: int = 2  # residual blocks per head

    @classmethod
    def of_target(cls, target: Target) -> MedusaConfig:
        """Return the default shape for a target."""
        return cls(target.shape.hidden_size)


class Medusa(Drafter):
    """Head i of `heads` is `heads.{i - 1}`."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.length = config.heads
        self.heads = nn.ModuleList(MedusaHead(config) for _ in range(config.heads))

    def loss(self, target: Target, view: View, generator: torch.Generator) -> Tensor:
        """Return the KL to the target's distribution at t + i, mean over heads."""
        losses = []
        for step, head in enumerate(self.heads, start=1):
            places = round_places(view.predicts, step)
            expected = target.logits(shift_left(view.hidden, step)[places])
            losses.append(divergence(target.logits(head(view.hidden[places])), expected))
        return torch.stack(losses).mean()

    @torch.no_grad()
    def drafts(self, target: Target, view: View) -> Tensor:
        """Draft with all heads at every start."""
        return torch.stack([candidates(target.logits(head(view.hidden))) for head in self.heads], dim=2)


class MedusaHead(nn.Module):
    """Starts as the identity, which proposes the target's own next token.

    A residual block can hardly subtract. `output` can remove what the state says about token t + 1, as the
    full output matrix per head in the paper could.
    """

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(config.blocks))
        for block in self.blocks:
            nn.init.zeros_(block.get_parameter("weight"))
            nn.init.zeros_(block.get_parameter("bias"))
        self.output = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.output.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., D] → [..., D], the input of the target's output matrix."""
        for block in self.blocks:
            x = x + nn.functional.silu(block(x))
        y: Tensor = self.output(x)
        return y
