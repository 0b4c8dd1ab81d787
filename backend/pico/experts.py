"""The mixture of experts as training computes it: tokens sorted by expert, one product per expert.

transformers masks and gathers once per expert and copies a whole weight gradient for each; on a CPU that
costs several times the products themselves.
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
"""What is added to a block's output: from the layer's index, x (T, D) and chosen (T, k), as HyperMoE's."""


@dataclass(slots=True)
class Routing:
    """What the last forward pass of a block chose, for the balance loss and for counting."""

    probabilities: Tensor  # (tokens, experts)
    chosen: Tensor  # (tokens, chosen experts)


def run_experts(
    gate_up_proj: Tensor, down_proj: Tensor, x: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """The weighted sum of the chosen experts' outputs: x (T, D) → (T, D).

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


def run_experts_at_once(
    gate_up_proj: Tensor, down_proj: Tensor, x: Tensor, chosen: Tensor, weights: Tensor
) -> Tensor:
    """The same with every expert over every token, those not chosen weighing nothing: for a GPU.

    There that costs less than to wait until the CPU knows how many tokens chose which expert.
    """
    shares = weights.new_zeros(len(x), len(down_proj)).scatter(1, chosen, weights)
    gate, up = (x @ gate_up_proj.mT).chunk(2, dim=-1)  # [E, T, I] each
    inner = nn.functional.silu(gate) * up * shares.T.unsqueeze(-1)
    return inner.transpose(0, 1).flatten(1) @ down_proj.mT.flatten(0, 1)


class ExpertBlock(nn.Module):
    """A drop-in for the block of transformers, with the same parameters under the same names."""

    def __init__(self, block: Qwen3MoeSparseMoeBlock, layer: int, hyper: Modulation | None = None) -> None:
        super().__init__()
        self.experts, self.gate = block.experts, block.gate
        self.layer = layer
        self.routing: Routing | None = None
        # In a list, so that the shared network is not registered once per layer.
        self._hyper = [hyper] if hyper is not None else []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, hidden: Tensor) -> Tensor:
        """(rows, length, D) → the same; keeps the routing for the balance loss."""
        x = hidden.flatten(0, 1)
        probabilities = nn.functional.linear(x, self.gate.weight).softmax(dim=-1)
        weights, chosen = probabilities.topk(self.gate.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        self.routing = Routing(probabilities, chosen)
        run = run_experts if x.device.type == "cpu" else run_experts_at_once
        output = run(self.experts.gate_up_proj, self.experts.down_proj, x, chosen, weights)
        for hyper in self._hyper:
            output = output + hyper(self.layer, x, chosen)
        return output.view_as(hidden)


def replace_blocks(model: nn.Module, hyper: Modulation | None = None) -> None:
    """Let every mixture-of-experts block of the model compute this way."""
    for index, layer in enumerate(model.get_submodule("model.layers").children()):
        layer.mlp = ExpertBlock(cast("Any", layer.mlp), index, hyper)


def routings(model: nn.Module) -> Iterator[Routing]:
    """The routing of each block's last forward pass, in order of the layers; nothing for a dense model."""
    for module in model.modules():
        if isinstance(module, ExpertBlock) and module.routing is not None:
            yield module.routing


def balance_loss(model: nn.Module, real: Tensor) -> Tensor:
    """Mean over the layers of experts x share of tokens x mean probability: 1 when balanced.

    From Switch Transformers (Fedus et al., 2021), eq. 4 to 6. `real` (tokens,) leaves padding out.
    """
    # Weighed, not picked: that would have a GPU wait until the CPU knows how many there are.
    weights = (real / real.sum()).unsqueeze(1)
    losses = []
    for routing in routings(model):
        probabilities, chosen = routing.probabilities, routing.chosen
        is_chosen = torch.zeros_like(probabilities).scatter(1, chosen, 1.0)
        share = (is_chosen * weights).sum(0) / chosen.shape[1]
        losses.append(probabilities.shape[1] * (share * (probabilities * weights).sum(0)).sum())
    return torch.stack(losses).mean() if losses else torch.zeros((), device=real.device)
