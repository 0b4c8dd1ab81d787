"""Other routers against their definitions, the block beside experts, and rows that ignore their company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from backend.config import GroupScore, MoEConfig, RouterScores, RoutingConfig
from backend.kernels.lora import AdapterRows, SlotWeights
from backend.layers.linear import Linear
from backend.layers.mlp import MLP
from backend.layers.moe import MoE
from backend.layers.moe_variants import ScoredChoice, SharedMoE

EXPERTS, TOP_K, WIDE, NARROW = 12, 3, 32, 64


def expected(logits: list[float], config: MoEConfig, bias: list[float]) -> dict[int, float]:
    """Each chosen expert's share, one token at a time and one step after another."""
    routing = config.routing
    assert routing is not None
    exps = [np.exp(x) for x in logits]
    scores = [e / sum(exps) if routing.scores == "softmax" else e / (1 + e) for e in exps]
    ranked = [score + own for score, own in zip(scores, bias, strict=True)]
    size = len(ranked) // routing.num_groups

    def group_score(group: int) -> float:
        best = sorted(ranked[group * size : (group + 1) * size], reverse=True)
        return sum(best[: 2 if routing.group_score == "top2" else 1])

    groups = sorted(range(routing.num_groups), key=group_score, reverse=True)[: routing.kept_groups]
    allowed = [expert for expert in range(len(ranked)) if expert // size in groups]
    chosen = sorted(allowed, key=lambda expert: ranked[expert], reverse=True)[: config.experts_per_token]
    total = sum(scores[expert] for expert in chosen) if config.normalise_top_k else 1.0
    return {expert: scores[expert] / total * routing.share_factor for expert in chosen}


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize(("groups", "kept", "group_score"), [(1, 1, "top2"), (4, 2, "top2"), (4, 2, "max")])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_choice_is_by_its_definition(
    scores: RouterScores, groups: int, kept: int, group_score: GroupScore, normalise: bool, has_bias: bool
) -> None:
    torch.manual_seed(5)
    routing = RoutingConfig(
        scores=scores,
        has_bias=has_bias,
        num_groups=groups,
        kept_groups=kept,
        group_score=group_score,
        share_factor=2.5,
    )
    config = MoEConfig(EXPERTS, TOP_K, WIDE, normalise, routing)
    bias = torch.randn(EXPERTS) * 0.3 if has_bias else torch.zeros(EXPERTS)
    logits = torch.randn(50, EXPERTS)
    shares, chosen = ScoredChoice(config, routing, bias if has_bias else None)(logits)
    assert shares.dtype == torch.float32 and chosen.dtype == torch.int64
    for row, own, experts in zip(logits.tolist(), shares.tolist(), chosen.tolist(), strict=True):
        assert dict(zip(experts, own, strict=True)) == pytest.approx(expected(row, config, bias.tolist()))


def test_shares_of_scores_that_vanish_are_numbers() -> None:
    routing = RoutingConfig(scores="sigmoid")
    choice = ScoredChoice(MoEConfig(EXPERTS, TOP_K, WIDE, True, routing), routing, None)
    assert choice(torch.full((2, EXPERTS), -200.0))[0].isfinite().all()


def test_capped_logits() -> None:
    torch.manual_seed(6)
    plain, capped = (RoutingConfig(scores="sigmoid", softcap=cap) for cap in (None, 1.5))
    logits = torch.randn(9, EXPERTS) * 3
    before = logits.clone()
    choices = [
        ScoredChoice(MoEConfig(EXPERTS, TOP_K, WIDE, True, each), each, None) for each in (plain, capped)
    ]
    shares, chosen = choices[1](logits)
    expected, same = choices[0](1.5 * (logits / 1.5).tanh())
    torch.testing.assert_close(shares, expected)
    assert torch.equal(chosen, same) and torch.equal(logits, before)


def made(*, has_gate: bool) -> SharedMoE:
    torch.manual_seed(3)

    def linear(rows: int, columns: int) -> Linear:
        return Linear([torch.randn(rows, columns) / 8], None, "plain")

    routing = RoutingConfig(scores="sigmoid", num_groups=4, kept_groups=2)
    config = MoEConfig(EXPERTS, TOP_K, WIDE, True, routing)
    experts = MoE(
        config,
        linear(EXPERTS, NARROW),
        [linear(2 * WIDE, NARROW) for _ in range(EXPERTS)],
        [linear(NARROW, WIDE) for _ in range(EXPERTS)],
        choose=ScoredChoice(config, routing, torch.randn(EXPERTS)),
    )
    shared = MLP(linear(2 * WIDE, NARROW), linear(NARROW, WIDE))
    return SharedMoE(experts, shared, linear(1, NARROW) if has_gate else None)


@pytest.mark.parametrize("has_gate", [True, False])
def test_the_block_beside_experts(has_gate: bool) -> None:
    layer, x = made(has_gate=has_gate), torch.randn(7, NARROW)
    factor: Tensor | float = layer.gate(x).sigmoid() if layer.gate else 1.0
    torch.testing.assert_close(layer(x), layer.experts(x) + factor * layer.shared(x))


def test_company_changes_no_bits() -> None:
    layer, x = made(has_gate=True), torch.randn(33, NARROW)
    logits, choose = torch.randn(33, EXPERTS), layer.experts.choose
    gate = layer.gate
    assert gate is not None
    together = choose(logits)
    for row in range(33):
        for one, all_ in zip(choose(logits[row : row + 1]), together, strict=True):
            assert torch.equal(one[0], all_[row])
    assert layer(x).shape == x.shape


def test_adapters_of_the_shared_block_are_added() -> None:
    layer, x = made(has_gate=True), torch.randn(3, NARROW)
    rows, before = AdapterRows(np.array([0, 0, -1]), torch.device("cpu")), layer(x)
    down = layer.shared.down
    down.adapters = SlotWeights(1, WIDE, [NARROW], 1, torch.empty(0))
    down.adapters.put(0, {0: (torch.ones(1, WIDE), torch.ones(1, NARROW))})
    after = layer(x, rows)
    assert not torch.allclose(after[:2], before[:2]) and torch.equal(after[2], before[2])
