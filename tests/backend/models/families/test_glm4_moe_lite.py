"""GLM-4.7-Flash: its published config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import DenseSpec, LatentSpec, RoutingConfig
from backend.errors import CheckpointError
from backend.models.families import FAMILIES
from tests.backend.models.families.configs import read

NAME = "Glm4MoeLiteForCausalLM"
PUBLISHED = {
    "num_hidden_layers": 3,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 64,
    "num_nextn_predict_layers": 1,
    "topk_method": "noaux_tc",
    "partial_rotary_factor": 1.0,
    "rope_scaling": None,
    "rope_theta": 1_000_000,
}


def test_the_published_configuration(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, **PUBLISHED)
    assert config.attention.latent == LatentSpec(
        rank=512, query_rank=768, plain_dim=192, rotated_dim=64, value_dim=256, eps=1e-6
    )
    assert config.attention.scale == 256**-0.5 and config.rms_norm_eps == 1e-5
    moe = config.experts
    assert moe is not None and (moe.num_experts, moe.experts_per_token) == (64, 4)
    assert moe.routing == RoutingConfig(scores="sigmoid", has_bias=True, share_factor=1.8)
    assert [isinstance(layer.feed_forward, DenseSpec) for layer in config.layers] == [True, False, False]
    assert FAMILIES[NAME].others == ("model.layers.{num_layers}.",)


def test_layers_by_their_types(tmp_path: Path) -> None:
    types = ["sparse", "dense", "sparse"]
    config = read(tmp_path, NAME, num_hidden_layers=3, mlp_layer_types=types)
    assert [isinstance(layer.feed_forward, DenseSpec) for layer in config.layers] == [False, True, False]
    with pytest.raises(CheckpointError, match="'mlp_layer_types' is .*first_k_dense_replace=1 says"):
        read(tmp_path, NAME, num_hidden_layers=3, mlp_layer_types=types, first_k_dense_replace=1)


def test_a_part_of_the_rotated_dimensions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'partial_rotary_factor' 0.5 is not supported"):
        read(tmp_path, NAME, **{**PUBLISHED, "partial_rotary_factor": 0.5})
