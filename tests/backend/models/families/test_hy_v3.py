"""Hy3: which layers have experts, and what shares are multiplied by."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "HYV3ForCausalLM"


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, num_experts=16, moe_intermediate_size=40, num_shared_experts=2)
    moe = config.experts
    assert moe is not None and (moe.num_experts, moe.shared_size) == (16, 80)
    assert moe.routing == RoutingConfig(scores="sigmoid", has_bias=True, share_factor=2.826)
    assert [layer.feed_forward is moe for layer in config.layers] == [False, True, True, True]
    types = ["sparse", "dense", "dense", "sparse"]
    layers = read(tmp_path, NAME, mlp_layer_types=types).layers
    assert [layer.feed_forward is layers[0].feed_forward for layer in layers] == [True, False, False, True]
    assert config.attention.qk_norm == "head"


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"mlp_bias": True}, "'mlp_bias' True is not supported"),
        ({"mlp_layer_types": ["sparse"]}, "'mlp_layer_types' is .'sparse'., expected a list of 4"),
        ({"router_scaling_factor": -1}, "'router_scaling_factor' is -1"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
