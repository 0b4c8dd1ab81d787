"""DeepSeek-V3: its published config.json and Kimi K2's, and which of its experts a token gets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from backend.config import DenseSpec, LatentSpec, RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "DeepseekV3ForCausalLM"
PUBLISHED = {
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_group": 8,
    "topk_group": 4,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_nextn_predict_layers": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "max_position_embeddings": 163_840,
    "rope_theta": 10_000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 4096,
    },
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}
KIMI = {
    **PUBLISHED,
    "model_type": "kimi_k2",
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "rope_theta": 50_000.0,
    "routed_scaling_factor": 2.827,
    "num_nextn_predict_layers": 0,
    "rope_scaling": {**PUBLISHED["rope_scaling"], "factor": 32.0, "beta_fast": 1.0},
}


def test_the_published_configuration(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **PUBLISHED)
    attention, moe, rope = config.attention, config.experts, config.attention.rope
    assert attention.latent == LatentSpec(
        rank=512, query_rank=1536, plain_dim=128, rotated_dim=64, value_dim=128, eps=1e-6
    )
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (128, 1, 576)
    assert rope is not None and (rope.rope_type, rope.is_interleaved) == ("yarn", True)
    assert rope.attention_factor == 1  # of cosines; scores have it all
    assert attention.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert moe is not None and (moe.num_experts, moe.shared_size) == (256, 2048)
    assert moe.routing == RoutingConfig(
        scores="sigmoid", has_bias=True, num_groups=8, kept_groups=4, share_factor=2.5
    )
    dense = [isinstance(layer.feed_forward, DenseSpec) for layer in config.layers]
    assert dense == [True] * 3 + [False] * 58


def test_kimi_k2(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **KIMI)
    assert config.experts is not None and config.experts.routing is not None
    assert (config.experts.num_experts, config.experts.routing.num_groups) == (384, 1)
    assert config.attention.scale == pytest.approx(192**-0.5 * (0.1 * math.log(32) + 1) ** 2)


def test_what_transformers_5_saves(tmp_path: Path) -> None:
    saved = {key: value for key, value in PUBLISHED.items() if not key.startswith("rope")}
    saved |= {"rope_parameters": {**PUBLISHED["rope_scaling"], "rope_type": "yarn", "rope_theta": 10_000}}
    saved |= {"qk_head_dim": 192, "head_dim": 64, "num_local_experts": 256, "rope_interleave": True}
    assert read(tmp_path, NAME, **saved).layers == read(tmp_path, NAME, **PUBLISHED).layers


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"n_group": 7}, "'n_group' is 7, expected a divisor of 256 experts"),
        ({"topk_group": 9}, "'topk_group' is 9, expected at most n_group=8"),
        ({"topk_group": 1, "num_experts_per_tok": 33}, "'num_experts_per_tok' is 33, expected at most 32"),
        (
            {"num_local_experts": 255},
            "'n_routed_experts' is 256, expected the same as 'num_local_experts'",
        ),
        ({"scoring_func": "softmax"}, "'scoring_func' 'softmax' is not supported, only 'sigmoid'"),
        ({"topk_method": "greedy"}, "'topk_method' 'greedy' is not supported, only 'noaux_tc'"),
        ({"moe_layer_freq": 2}, "'moe_layer_freq' 2 is not supported, only 1"),
        ({"first_k_dense_replace": 62}, "'first_k_dense_replace' is 62.0, expected a whole number from 0"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment) as found:
        read(tmp_path, NAME, **{**PUBLISHED, **changes})
    assert str(tmp_path / "config.json") in str(found.value)
