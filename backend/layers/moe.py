"""The mixture-of-experts feed-forward block."""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import MoEConfig
from backend.kernels.experts import SmallExperts, run_experts
from backend.kernels.lora import AdapterRows
from backend.layers.hyper_moe import HyperExperts
from backend.layers.linear import Linear


class MoE:
    """A router picks the k most likely of E experts for each token; the sum is weighted by probability."""

    __slots__ = ("config", "down", "gate_up", "hyper", "small", "router")

    def __init__(
        self,
        config: MoEConfig,
        router: Linear,
        gate_up: list[Linear],
        down: list[Linear],
        hyper: HyperExperts | None = None,
        small: SmallExperts | None = None,
    ) -> None:
        """`small`: the same experts once more, for few tokens."""
        self.config = config
        self.hyper = hyper
        self.router = router
        self.gate_up = gate_up
        self.down = down
        self.small = small

    def __call__(self, x: Tensor, rows: AdapterRows | None = None) -> Tensor:
        """[T, D] → [T, D]."""
        probabilities = torch.softmax(self.router(x), dim=-1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self.config.experts_per_token, dim=-1)
        if self.config.normalise_top_k:
            weights /= weights.sum(dim=-1, keepdim=True)
        if rows is not None and all(expert.adapters is None for expert in (*self.gate_up, *self.down)):
            rows = None
        if self.small is not None and rows is None and self.small.serves(x.shape[0]):
            output = self.small(x, chosen, weights)
        else:
            output = run_experts(x, chosen, weights, self.gate_up, self.down, rows)
        if self.hyper is not None:
            output += self.hyper(x, chosen)
        return output
