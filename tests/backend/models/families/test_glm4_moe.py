"""GLM-4.5: which layers have experts, how they are chosen, and the half of each head that is rotated."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import DenseSpec, RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Glm4MoeForCausalLM"
GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, n_routed_experts=16, moe_intermediate_size=40, n_shared_experts=2, **GROUPS)
    moe = config.experts
    assert moe is not None and (moe.num_experts, moe.shared_size, moe.normalise_top_k) == (16, 80, True)
    assert moe.routing == RoutingConfig(
        scores="sigmoid", has_bias=True, num_groups=4, kept_groups=2, share_factor=2.5
    )
    assert [isinstance(layer.feed_forward, DenseSpec) for layer in config.layers] == [True] + [False] * 3


def test_attention(tmp_path: Path) -> None:
    attention = read(tmp_path, NAME, attention_bias=True).attention
    assert attention.rope is not None and attention.rope.rotated == 0.5
    assert (attention.qkv_bias, attention.o_bias, attention.qk_norm) == (True, False, None)
    assert read(tmp_path, NAME, use_qk_norm=True).attention.qk_norm == "head"


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"n_group": 5}, "'n_group' is 5, expected a divisor of 128 experts"),
        ({"n_group": 4, "topk_group": 5}, "'topk_group' is 5, expected at most n_group=4"),
        ({"first_k_dense_replace": 5}, "'first_k_dense_replace' is 5"),
        ({"n_routed_experts": 4}, "'num_experts_per_tok' is 8, expected at most 4 experts"),
        ({"partial_rotary_factor": 0.45}, "'partial_rotary_factor' is 0.45"),
        ({"hidden_act": "relu"}, "'hidden_act' 'relu' is not supported"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
