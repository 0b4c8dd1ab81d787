"""ERNIE 4.5 with experts: both names of its numbers, and which layers have experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Ernie4_5_MoeForCausalLM"


def sparse(tmp_path: Path, **changes: object) -> list[bool]:
    config = read(tmp_path, NAME, **changes)
    return [layer.feed_forward is config.experts for layer in config.layers]


def test_layers_with_experts(tmp_path: Path) -> None:
    assert sparse(tmp_path) == [False, True, True, True]
    assert sparse(tmp_path, moe_layer_start_index=0, moe_layer_end_index=2) == [True, True, True, False]
    assert sparse(tmp_path, moe_layer_interval=2) == [False, True, False, True]


@pytest.mark.parametrize(
    "names", [("moe_num_experts", "moe_k"), ("num_experts", "num_experts_per_tok")], ids=str
)
def test_both_names(tmp_path: Path, names: tuple[str, str]) -> None:
    experts = read(tmp_path, NAME, **dict(zip(names, (9, 3), strict=True))).experts
    assert experts is not None and (experts.num_experts, experts.experts_per_token) == (9, 3)
    assert experts.shared_size == 2 * 1536 and experts.routing is not None and experts.routing.has_bias


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"moe_k": 65}, "'moe_k' is 65, expected at most 64 experts"),
        ({"moe_k": 6, "num_experts_per_tok": 8}, "'moe_k' is 6, expected the same as"),
        ({"moe_layer_end_index": 4}, "'moe_layer_end_index' is 4.0, expected the index of one of 4"),
        ({"moe_layer_start_index": -5}, "'moe_layer_start_index' is -5.0"),
        ({"use_bias": True}, "'use_bias' True is not supported"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
