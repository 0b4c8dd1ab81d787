"""MiniMax M2: its router, and both ways to write how much of a head is rotated."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import RoutingConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "MiniMaxM2ForCausalLM"
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}


def test_experts_and_norms(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, num_local_experts=16)
    assert config.experts is not None and config.experts.intermediate_size == 96
    assert config.experts.routing == RoutingConfig(scores="sigmoid", has_bias=True)
    assert config.attention.qk_norm == "all" and config.attention.head_dim == 128


@pytest.mark.parametrize(
    "changes", [{"rotary_dim": 64}, {"rope_parameters": PARTIAL}, {"rotary_dim": 64, **PARTIAL}], ids=str
)
def test_rotation(tmp_path: Path, changes: dict[str, object]) -> None:
    rope = read(tmp_path, NAME, **changes).attention.rope
    assert rope is not None and rope.rotated == 0.5


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"scoring_func": "softmax"}, "'scoring_func' 'softmax' is not supported, only 'sigmoid'"),
        ({"rotary_dim": 32, "rope_parameters": PARTIAL}, "'rotary_dim' is 32, expected 0.5 of head_dim"),
        ({"num_local_experts": 4}, "'num_experts_per_tok' is 8, expected at most 4 experts"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
