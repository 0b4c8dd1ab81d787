"""Laguna: heads by layer, rotation by type, gates, and the router's cap."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "LagunaForCausalLM"
TYPES = ["full_attention", "sliding_attention"] * 2
HEADS = {"num_attention_heads_per_layer": [4, 8, 12, 4], "head_dim": 16, "layer_types": TYPES}


def test_layers(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **HEADS, num_key_value_heads=4, sliding_window=9)
    assert [spec.num_heads for spec in config.attentions] == [4, 8, 12, 4]
    assert config.windows == (None, 9, None, 9)
    assert [spec.rope and (spec.rope.theta, spec.rope.rotated) for spec in config.attentions] == [
        (5e5, 0.5),
        (1e4, 1.0),
    ] * 2
    assert [layer.feed_forward is config.experts for layer in config.layers] == [False, True, True, True]


def test_without_lists_all_layers_are_alike(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, gating="per-head", num_experts=8, moe_routed_scaling_factor=2.5)
    assert len(set(config.attentions)) == 1 and config.attention.window is None
    moe = config.experts
    assert moe is not None and (moe.num_experts, moe.shared_size) == (8, 512)
    assert moe.routing == RoutingConfig(scores="sigmoid", has_bias=True, share_factor=2.5)


@pytest.mark.parametrize(
    ("gating", "expected"),
    [(True, "head_softplus"), ("per-head", "head_softplus"), ("per-element", "softplus")],
)
def test_gates(tmp_path: Path, gating: object, expected: str) -> None:
    assert read(tmp_path, NAME, gating=gating).attention.output_gate == expected


def test_the_routers_cap(tmp_path: Path) -> None:
    moe = read(tmp_path, NAME, moe_router_logit_softcapping=7.0).experts
    assert moe is not None and moe.routing is not None and moe.routing.softcap == 7.0


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"gating": False}, "'gating' False is not supported"),
        ({"moe_apply_router_weight_on_input": True}, "'moe_apply_router_weight_on_input' True is not"),
        (
            {"num_attention_heads_per_layer": [4, 4]},
            "'num_attention_heads_per_layer' is .*, expected a list of 4",
        ),
        ({"num_attention_heads_per_layer": [4, 6, 4, 4]}, "'num_key_value_heads' is 4, expected a divisor"),
        ({"moe_router_logit_softcapping": -1}, "'moe_router_logit_softcapping' is -1"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "an object for 'sliding_attention'"),
        ({"sliding_window": 0, "layer_types": TYPES}, "'sliding_window' is 0"),
        ({"mlp_layer_types": ["sparse"]}, "'mlp_layer_types' is .*, expected a list of 4 names"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
