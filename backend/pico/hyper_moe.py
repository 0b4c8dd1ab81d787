"""HyperMoE for training (Zhao et al., 2024): unselected experts modulate the selected ones.

A hypernetwork shared by all layers maps the mean embedding of a token's unselected experts and an embedding
of the layer to a small adapter, the HyperExpert, whose output is added to that of the selected experts. Its
input depends on the layer and the selected set only, so a pass generates each set's HyperExpert once.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from backend.models.hyper_moe import HyperMoEConfig, all_subsets, binomial_table, subset_numbers
from backend.pico.experts import replace_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Qwen3MoeForCausalLM

MAX_SETS = 4096
"""Bound on the number of sets; each pass generates all of their HyperExperts."""


class HyperNetwork(nn.Module):
    """Generates the HyperExperts of all layers; `up` starts at zero, so that the output is unchanged."""

    binomials: Tensor
    unselected: Tensor

    def __init__(
        self, config: HyperMoEConfig, num_layers: int, num_experts: int, chosen_experts: int, hidden_size: int
    ) -> None:
        super().__init__()
        sets = math.comb(num_experts, chosen_experts)
        if sets > MAX_SETS or chosen_experts == num_experts:
            raise ValueError(
                f"{chosen_experts} of {num_experts} experts make {sets} sets; "
                f"training takes 2 to {MAX_SETS}, choose other numbers"
            )
        self.config = config
        self.expert_embeddings = nn.Parameter(torch.randn(num_layers, num_experts, config.embedding_size))
        self.layer_embeddings = nn.Parameter(torch.randn(num_layers, config.embedding_size))
        self.hidden = nn.Linear(2 * config.embedding_size, config.hidden_size)
        self.condition = nn.Linear(config.hidden_size, config.condition_size, bias=False)
        self.down = nn.Linear(config.condition_size, config.rank * hidden_size, bias=False)
        self.up = nn.Linear(config.condition_size, hidden_size * config.rank, bias=False)
        # The condition has unit length, so that generated entries have the spread of nn.Linear's
        # initialisation.
        nn.init.normal_(self.down.weight, std=hidden_size**-0.5)
        nn.init.zeros_(self.up.weight)
        chosen = all_subsets(num_experts, chosen_experts)
        left_out = torch.ones(sets, num_experts).scatter_(1, chosen, 0.0)
        self.register_buffer("binomials", binomial_table(num_experts, chosen_experts), persistent=False)
        self.register_buffer("unselected", left_out / (num_experts - chosen_experts), persistent=False)

    def hyper_experts(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the layer's adapters, one per set of selected experts: down (S, D, r), up (S, r, D)."""
        aggregate = self.unselected @ self.expert_embeddings[layer]
        place = self.layer_embeddings[layer].expand(len(aggregate), -1)
        hidden = nn.functional.silu(self.hidden(torch.cat((aggregate, place), dim=1)))
        condition = nn.functional.normalize(self.condition(hidden), dim=1)
        rank = self.config.rank
        down: Tensor = self.down(condition).unflatten(1, (rank, -1)).mT
        up: Tensor = self.up(condition).unflatten(1, (-1, rank)).mT
        return down, up

    def forward(self, layer: int, x: Tensor, chosen: Tensor) -> Tensor:
        """Return the HyperExperts' output: x (T, D), selected experts (T, k) → (T, D)."""
        down, up = self.hyper_experts(layer)
        ordered, order = subset_numbers(chosen, self.binomials).sort()
        counts = torch.bincount(ordered, minlength=len(down)).tolist()
        inner = nn.functional.silu(_grouped(x.index_select(0, order), down, counts))
        output = _grouped(inner, up, counts)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return output.index_select(0, back)


def attach(model: PreTrainedModel, config: HyperMoEConfig) -> HyperNetwork:
    """Add HyperExperts to a model, saved with it as `hyper.*` and as config.json's "hyper_moe"."""
    shape = model.config
    hyper = HyperNetwork(
        config, shape.num_hidden_layers, shape.num_experts, shape.num_experts_per_tok, shape.hidden_size
    )
    model.add_module("hyper", hyper)
    model.config.hyper_moe = asdict(config)
    replace_blocks(model, hyper)
    return hyper


def load_sparse(folder: Path) -> Qwen3MoeForCausalLM:
    """Load a stored mixture of experts in fp32 with ExpertBlocks, and its HyperExperts if it has any."""
    from transformers import Qwen3MoeForCausalLM

    model = Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stored = getattr(model.config, "hyper_moe", None)
    if stored is None:
        replace_blocks(model)
        return model
    hyper = attach(model, HyperMoEConfig(**stored))
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        weights = {name: file.get_tensor(f"hyper.{name}").float() for name in hyper.state_dict()}
    hyper.load_state_dict(weights)
    return model


class _Grouped(torch.autograd.Function):
    """Grouped matrix product that writes its outputs in place, without autograd's overhead per group."""

    @staticmethod
    def forward(  # torch does not export the type of ctx
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weights: Tensor,
        counts: list[int],
    ) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.counts = counts
        y = x.new_empty(len(x), weights.shape[2])
        begin = 0
        for weight, count in zip(weights, counts, strict=True):
            rows = slice(begin, begin := begin + count)
            torch.mm(x[rows], weight, out=y[rows])
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401
        (dy,) = gradients
        x, weights = ctx.saved_tensors
        dx, dweights = torch.empty_like(x), torch.zeros_like(weights)
        begin = 0
        for index, count in enumerate(ctx.counts):
            rows = slice(begin, begin := begin + count)
            torch.mm(dy[rows], weights[index].T, out=dx[rows])
            torch.mm(x[rows].T, dy[rows], out=dweights[index])
        return dx, dweights, None


def _grouped(x: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
    """Multiply x (T, K), sorted into groups of `counts` rows, by weights (G, K, N) → (T, N)."""
    result: Tensor = _Grouped.apply(x, weights, counts)  # type: ignore[no-untyped-call]
    return result
