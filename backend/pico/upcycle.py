"""Sparse upcycling: a mixture of experts from a trained dense model (Komatsuzaki et al., 2022).

Everything but the feed-forward blocks is copied. Each expert gets a different random subset of the dense
block's neurons, scaled so that the mean over the experts equals the dense block's output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM

ROUTER_STD = 0.02


@torch.no_grad()
def upcycle(dense: Qwen3ForCausalLM, sparse: Qwen3MoeForCausalLM, seed: int) -> None:
    """Overwrite the sparse model's weights with ones grown from the dense model; both in fp32."""
    generator = torch.Generator().manual_seed(seed)
    source = dense.state_dict()
    target = sparse.state_dict()
    for name, tensor in target.items():
        if name in source:
            tensor.copy_(source[name])
    for index in range(sparse.config.num_hidden_layers):
        prefix = f"model.layers.{index}.mlp."
        gate, up, down = (source[f"{prefix}{part}_proj.weight"] for part in ("gate", "up", "down"))
        gate_up, expert_down = target[f"{prefix}experts.gate_up_proj"], target[f"{prefix}experts.down_proj"]
        width = expert_down.shape[-1]
        for expert in range(expert_down.shape[0]):
            kept = torch.randperm(gate.shape[0], generator=generator)[:width]
            gate_up[expert].copy_(torch.cat((gate[kept], up[kept])))
            expert_down[expert].copy_(down[:, kept] * (gate.shape[0] / width) ** 0.5)
        router = target[f"{prefix}gate.weight"]
        router.copy_(ROUTER_STD * torch.randn(router.shape, generator=generator))
