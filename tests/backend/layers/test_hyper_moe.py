"""The engine's HyperExperts equal those of training, generated at load or as needed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backend.config import HyperMoEConfig, MoEConfig
from backend.layers import hyper_moe
from backend.layers.hyper_moe import HyperExperts
from backend.pico.hyper_moe import HyperNetwork

CONFIG = HyperMoEConfig(embedding_size=5, hidden_size=7, condition_size=6, rank=3)


@pytest.mark.parametrize("max_table_bytes", [hyper_moe.MAX_TABLE_BYTES, 0])
@pytest.mark.parametrize(("num_experts", "chosen_experts"), [(8, 2), (6, 3), (4, 1)])
def test_equals_training(
    monkeypatch: pytest.MonkeyPatch, num_experts: int, chosen_experts: int, max_table_bytes: int
) -> None:
    monkeypatch.setattr(hyper_moe, "MAX_TABLE_BYTES", max_table_bytes)
    torch.manual_seed(num_experts)
    trained = HyperNetwork(CONFIG, 3, num_experts, chosen_experts, hidden_size=24)
    nn.init.normal_(trained.up.weight)
    weights = {name: parameter.detach() for name, parameter in trained.named_parameters()}
    network = hyper_moe.HyperNetwork(
        rank=CONFIG.rank,
        expert_embeddings=weights["expert_embeddings"],
        layer_embeddings=weights["layer_embeddings"],
        hidden=weights["hidden.weight"],
        hidden_bias=weights["hidden.bias"],
        condition=weights["condition.weight"],
        down=weights["down.weight"],
        up=weights["up.weight"],
    )
    x = torch.randn(50, 24)
    chosen = torch.stack([torch.randperm(num_experts)[:chosen_experts] for _ in range(50)])
    moe = MoEConfig(num_experts, chosen_experts, 16, normalise_top_k=True, hyper=CONFIG)
    layers = []
    for layer in range(3):
        experts = HyperExperts(network, layer, moe, torch.float32)
        assert experts.is_precomputed == (max_table_bytes > 0)
        layers.append(experts(x, chosen))
        torch.testing.assert_close(layers[-1], trained(layer, x, chosen), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(experts(x[7:8], chosen[7:8])[0], layers[-1][7], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(layers[0], layers[1], atol=0.1)
