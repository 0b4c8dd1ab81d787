"""DeepSeek-V2: its two ways to choose experts, and what only its original code does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from backend.config import RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "DeepseekV2ForCausalLM"
LITE = {
    "q_lora_rank": None,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_method": "greedy",
    "rope_theta": 10_000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
}
LARGE = {
    **LITE,
    "q_lora_rank": 1536,
    "n_routed_experts": 160,
    "n_group": 8,
    "topk_group": 3,
    "routed_scaling_factor": 16.0,
    "topk_method": "group_limited_greedy",
}


def test_the_lite_model_ignores_groups(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **{**LITE, "n_group": 3})
    assert config.experts is not None and config.experts.shared_size == 2816
    assert config.experts.routing == RoutingConfig(group_score="max")
    assert config.attention.latent is not None and config.attention.latent.query_rank is None
    assert config.attention.scale == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)


def test_the_large_model_takes_the_best_expert_of_each_group(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **LARGE)
    assert config.experts is not None and config.experts.routing == RoutingConfig(
        num_groups=8, kept_groups=3, group_score="max", share_factor=16.0
    )


def test_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, n_routed_experts=8, num_experts_per_tok=2)
    assert all(layer.feed_forward == config.experts for layer in config.layers)
    assert config.attention.scale == pytest.approx(192**-0.5)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"n_group": 7}, "'n_group' is 7, expected a divisor of 160 experts"),
        ({"topk_method": "noaux_tc"}, "'topk_method' 'noaux_tc' is not supported, only 'greedy' and"),
        ({"norm_topk_prob": True}, "'norm_topk_prob' True is not supported, only False"),
        ({"mlp_bias": True}, "'mlp_bias' True is not supported, only False"),
        ({"scoring_func": "sigmoid"}, "'scoring_func' 'sigmoid' is not supported, only 'softmax'"),
        ({"num_key_value_heads": 2}, "'num_key_value_heads' is 2, expected num_attention_heads=4"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **{**LARGE, **changes})
