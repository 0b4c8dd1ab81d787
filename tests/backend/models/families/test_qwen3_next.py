"""Qwen3-Next: which layers have experts, and the names of its stacked projections."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import MoEConfig
from backend.errors import CheckpointError
from backend.models.families import FAMILIES
from tests.backend.models.families.configs import read

NAME = "Qwen3NextForCausalLM"


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, mlp_only_layers=[2], num_experts=20, norm_topk_prob=False)
    assert [isinstance(layer.feed_forward, MoEConfig) for layer in config.layers] == [True, True, False, True]
    moe = config.experts
    assert moe is not None and (moe.num_experts, moe.experts_per_token, moe.shared_size) == (20, 10, 512)
    assert moe.has_shared_gate and not moe.normalise_top_k
    assert len(config.states) == 3 and len(FAMILIES[NAME].names.delta.inputs) == 1


def test_more_experts_chosen_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="num_experts_per_tok"):
        read(tmp_path, NAME, num_experts=4)
