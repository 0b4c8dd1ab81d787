"""HyperMoE (Zhao et al., 2024): the experts that a token leaves out modulate those it chose.

A hypernetwork that all layers share turns the mean embedding of the unselected experts, with the layer's
own embedding, into an adapter whose output is added to that of the selected experts. It depends on layer and
chosen set alone: where the sets are few, all adapters are generated at load, else those of each step's sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from backend.config import MoEConfig
from backend.kernels.hyper_experts import run_hyper_experts
from backend.kernels.hyper_experts.subsets import all_subsets, binomial_table, subset_numbers

MAX_TABLE_BYTES = 1 << 24
"""Of one layer's adapters, in the dtype of computation."""


@dataclass(frozen=True, slots=True)
class HyperNetwork:
    """Generates adapters in float32, whatever the model computes in."""

    rank: int
    expert_embeddings: Tensor  # [layers, experts, e]
    layer_embeddings: Tensor  # [layers, e]
    hidden: Tensor  # [h, 2e]
    hidden_bias: Tensor  # [h]
    condition: Tensor  # [c, h]
    down: Tensor  # [r·D, c]
    up: Tensor  # [D·r, c]

    def generate(self, layer: int, subsets: Tensor) -> tuple[Tensor, Tensor]:
        """The adapters of sets of chosen experts [S, k]: down [S, D, r], up [S, r, D]."""
        embeddings = self.expert_embeddings[layer]
        num_experts, (num_sets, size) = len(embeddings), subsets.shape
        left_out = embeddings.new_ones(num_sets, num_experts).scatter_(1, subsets, 0.0)
        aggregate = left_out @ embeddings / (num_experts - size)
        place = self.layer_embeddings[layer].expand(num_sets, -1)
        seen = functional.linear(torch.cat((aggregate, place), dim=1), self.hidden, self.hidden_bias)
        condition = functional.normalize(functional.linear(functional.silu(seen), self.condition), dim=1)
        down = functional.linear(condition, self.down).view(num_sets, self.rank, -1).mT
        up = functional.linear(condition, self.up).view(num_sets, -1, self.rank).mT
        return down, up


class HyperExperts:
    """One layer's adapters."""

    __slots__ = ("_binomials", "_compute", "_layer", "_network", "_table")

    def __init__(self, network: HyperNetwork, layer: int, moe: MoEConfig, compute: torch.dtype) -> None:
        self._network, self._layer, self._compute = network, layer, compute
        num_sets = math.comb(moe.num_experts, moe.experts_per_token)
        adapter_elements = (network.down.shape[0] + network.up.shape[0]) * num_sets
        self._table: tuple[Tensor, Tensor] | None = None
        if adapter_elements * compute.itemsize <= MAX_TABLE_BYTES:
            device = network.down.device
            self._binomials = binomial_table(moe.num_experts, moe.experts_per_token).to(device)
            self._table = self._generate(all_subsets(moe.num_experts, moe.experts_per_token).to(device))

    @property
    def is_precomputed(self) -> bool:
        """Every set's adapter is in memory."""
        return self._table is not None

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """What is added to the selected experts' output: x [T, D], chosen [T, k] → [T, D]."""
        if self._table is not None:
            return run_hyper_experts(x, subset_numbers(chosen, self._binomials), *self._table)
        subsets, numbers = torch.unique(chosen.sort(dim=1).values, dim=0, return_inverse=True)
        return run_hyper_experts(x, numbers, *self._generate(subsets))

    def _generate(self, subsets: Tensor) -> tuple[Tensor, Tensor]:
        down, up = self._network.generate(self._layer, subsets)
        return down.to(self._compute).contiguous(), up.to(self._compute).contiguous()
