"""Medusa heads (arXiv 2401.10774, Medusa-1: the target stays frozen).

Head i (1..heads) reads the target's hidden state at t, after the final norm, and proposes token t + 1 + i
(token t + 1 is the target's own). Residual blocks x + silu(Wx + b), a matrix of the head's own, then the
target's output matrix.
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
    """Head i of `heads` is `heads.{i - 1}`."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.length = config.heads
        self.heads = nn.ModuleList(MedusaHead(config) for _ in range(config.heads))

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


class MedusaHead(nn.Module):
    """Starts as the identity: it repeats the target's own next token.

    A block adds nothing much below zero. `output` can turn what the state says about token t + 1 away, as
    the whole output matrix that the paper gives each head would.
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
        """[..., D] → [..., D]: what the target's output matrix reads."""
        for block in self.blocks:
            x = x + nn.functional.silu(block(x))
        y: Tensor = self.output(x)
        return y
