"""Which of its two ways a mixture of experts takes, and that both say the same."""

from __future__ import annotations

import numpy as np
import torch

from backend.config import MoEConfig
from backend.kernels.experts import FusedExperts
from backend.kernels.lora import AdapterRows, SlotWeights
from backend.layers.linear import Linear
from backend.layers.moe import MoE

EXPERTS, WIDE, NARROW = 4, 32, 64


def made() -> MoE:
    torch.manual_seed(3)
    gates, ups = torch.randn(EXPERTS, WIDE, NARROW) / 8, torch.randn(EXPERTS, WIDE, NARROW) / 8
    down = torch.randn(EXPERTS, NARROW, WIDE) / 8
    return MoE(
        MoEConfig(EXPERTS, 2, WIDE, True),
        Linear([torch.randn(EXPERTS, NARROW)], None, "plain"),
        [Linear([gate, up], None, "plain") for gate, up in zip(gates, ups, strict=True)],
        [Linear([weight], None, "plain") for weight in down],
        fused=FusedExperts(list(gates), list(ups), list(down), 2),
    )


def test_tokens_go_through_the_loop_with_the_same_result() -> None:
    layer = made()
    x = torch.randn(40, NARROW)
    fused = layer.fused
    layer.fused = None
    expected = layer(x)
    layer.fused = fused
    for num_tokens in (1, 2, 12, 40):
        got = layer(x[:num_tokens])
        torch.testing.assert_close(got, expected[:num_tokens], rtol=1e-4, atol=1e-5)
    layer.gate_up, layer.down = [], []
    assert layer(x[:2]).shape == (2, NARROW), "the experts themselves were not asked"


def test_adapters_of_experts_are_not_passed_over() -> None:
    layer = made()
    x, rows = torch.randn(3, NARROW), AdapterRows(np.array([0, 0, -1]), torch.device("cpu"))
    before = layer(x, rows)
    for expert in layer.down:
        expert.adapters = SlotWeights(1, WIDE, [NARROW], 1, torch.empty(0))
        expert.adapters.put(0, {0: (torch.ones(1, WIDE), torch.ones(1, NARROW))})
    after = layer(x, rows)
    assert not torch.allclose(after[:2], before[:2])
    assert torch.equal(after[2], before[2]), "the bits of a row without one do not depend on others' adapters"
