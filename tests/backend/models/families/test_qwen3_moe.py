"""Qwen3-MoE: which layers have experts, and how many."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read


def test_experts(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        "Qwen3MoeForCausalLM",
        num_experts=6,
        num_experts_per_tok=3,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    )
    assert (
        config.experts is not None and config.experts.num_experts == 6 and not config.experts.normalise_top_k
    )
    assert [layer.feed_forward is config.experts for layer in config.layers] == [False, True, False, False]
    assert config.attention.qk_norm and config.attention.head_dim == 16


def test_windows(tmp_path: Path) -> None:
    window = {"sliding_window": 9, "max_window_layers": 3}
    config = read(tmp_path, "Qwen3MoeForCausalLM", **window, use_sliding_window=True)
    assert config.windows == (9, 9, 9, 9)
    assert read(tmp_path, "Qwen3MoeForCausalLM", **window).windows == (None,) * 4


def test_more_chosen_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="at most 4 experts"):
        read(tmp_path, "Qwen3MoeForCausalLM", num_experts=4, num_experts_per_tok=5)


@pytest.mark.parametrize("wrong", [True, [[1]], [True], "1"])
def test_wrong_dense_layers(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(
        CheckpointError, match=r"config.json: 'mlp_only_layers' is .*, expected a list of whole"
    ):
        read(tmp_path, "Qwen3MoeForCausalLM", mlp_only_layers=wrong)
