"""Mixture of experts for training: tokens sorted by expert, one matrix product per expert.

transformers masks and gathers once per expert and copies a whole weight gradient for each, which on CPU costs
several times the matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

Modulation = Callable[[int, Tensor, Tensor], Tensor]
"""(layer, x (T, D), selected experts (T, k)) → an addition to the block's output (T, D), as HyperMoE's."""


@dataclass(slots=True)
class Routing:
    """The selection of a block's last forward pass, for the balance loss and for counting."""

    probabilities: Tensor  # (tokens, experts)
    chosen: Tensor  # (tokens, chosen experts)


def run_experts(
    gate_up_proj: Tensor, down_proj: Tensor, x: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """Return the weighted sum of the selected experts' outputs: x (T, D) → (T, D).

    gate_up_proj (E, 2 I, D), down_proj (E, D, I), chosen and weights (T, k).
    """
    order = chosen.flatten().argsort()
    counts = torch.bincount(chosen.flatten(), minlength=len(down_proj)).tolist()
    tokens = order // chosen.shape[1]
    outputs = []
    gate_up, down = gate_up_proj.unbind(0), down_proj.unbind(0)
    for expert, rows in enumerate(torch.split(x[tokens], counts)):
        gate, up = nn.functional.linear(rows, gate_up[expert]).chunk(2, dim=-1)
        outputs.append(nn.functional.linear(nn.functional.silu(gate) * up, down[expert]))
    weighted = torch.cat(outputs) * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, tokens, weighted)


def run_experts_dense(
    gate_up_proj: Tensor, down_proj: Tensor, x: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """`run_experts` where every expert processes every token, with weight 0 where not selected: for a GPU.

    On a GPU that is cheaper than synchronising with the CPU to learn how many tokens selected each expert.
    """
    shares = weights.new_zeros(len(x), len(down_proj)).scatter(1, chosen, weights)
    gate, up = (x @ gate_up_proj.mT).chunk(2, dim=-1)  # [E, T, I] each
    inner = nn.functional.silu(gate) * up * shares.T.unsqueeze(-1)
    return inner.transpose(0, 1).flatten(1) @ down_proj.mT.flatten(0, 1)


class ExpertBlock(nn.Module):
    """Drop-in replacement for transformers' block, with the same parameter names."""

    def __init__(self, block: Qwen3MoeSparseMoeBlock, layer: int, hyper: Modulation | None = None) -> None:
        super().__init__()
        self.experts, self.gate = block.experts, block.gate
        self.layer = layer
        self.routing: Routing | None = None
        # In a list, so that the network that all layers share is not registered in each of them.
        self._hyper = [hyper] if hyper is not None else []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, hidden: Tensor) -> Tensor:
        """Map (rows, length, D) to the same shape, and keep the routing for the balance loss."""
        x = hidden.flatten(0, 1)
        probabilities = nn.functional.linear(x, self.gate.weight).softmax(dim=-1)
        weights, chosen = probabilities.topk(self.gate.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        self.routing = Routing(probabilities, chosen)
        run = run_experts if x.device.type == "cpu" else run_experts_dense
        output = run(self.experts.gate_up_proj, self.experts.down_proj, x, chosen, weights)
        for hyper in self._hyper:
            output = output + hyper(self.layer, x, chosen)
        return output.view_as(hidden)


def replace_blocks(model: nn.Module, hyper: Modulation | None = None) -> None:
    """Replace every mixture-of-experts block of the model by an ExpertBlock."""
    for index, layer in enumerate(model.get_submodule("model.layers").children()):
        layer.mlp = ExpertBlock(cast("Any", layer.mlp), index, hyper)


def routings(model: nn.Module) -> Iterator[Routing]:
    """Yield the routing of each block's last forward pass, in order of layers; nothing for a dense model."""
    for module in model.modules():
        if isinstance(module, ExpertBlock) and module.routing is not None:
            yield module.routing


def balance_loss(model: nn.Module, real: Tensor) -> Tensor:
    """Return the load-balancing loss: mean over layers of E · Σ (fraction of tokens · mean probability).

    1 when balanced. Switch Transformers (Fedus et al., 2021), eq. 4 to 6. `real` (tokens,) is False for
    padding.
    """
    # Multiplied, not indexed: boolean indexing would synchronise with the GPU.
    weights = (real / real.sum()).unsqueeze(1)
    losses = []
    for routing in routings(model):
        probabilities, chosen = routing.probabilities, routing.chosen
        is_chosen = torch.zeros_like(probabilities).scatter(1, chosen, 1.0)
        share = (is_chosen * weights).sum(0) / chosen.shape[1]
        losses.append(probabilities.shape[1] * (share * (probabilities * weights).sum(0)).sum())
    return torch.stack(losses).mean() if losses else torch.zeros((), device=real.device)
