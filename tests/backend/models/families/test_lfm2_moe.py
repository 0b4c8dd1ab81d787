"""LFM2 with experts: which layers have some, and how they are chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import MoEConfig, RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Lfm2MoeForCausalLM"
TYPES = ["conv", "conv", "full_attention", "conv"]


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, layer_types=TYPES, num_experts=6, use_expert_bias=False)
    assert [isinstance(layer.feed_forward, MoEConfig) for layer in config.layers] == [
        False,
        False,
        True,
        True,
    ]
    routing = RoutingConfig(scores="sigmoid", sum_offset=1e-6)
    assert config.experts == MoEConfig(6, 4, 1792, True, routing) and len(config.states) == 3


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("num_dense_layers", {"num_dense_layers": 5}),
        ("num_experts_per_tok", {"num_experts": 3}),
        ("routed_scaling_factor", {"routed_scaling_factor": 0}),
        ("norm_topk_prob", {"norm_topk_prob": 1}),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, changes: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=key):
        read(tmp_path, NAME, layer_types=TYPES, **changes)
