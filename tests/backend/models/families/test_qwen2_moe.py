"""Qwen2-MoE: the dense block beside experts, biases, windows, and both names of the experts' number."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Qwen2MoeForCausalLM"


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, num_experts=6, mlp_only_layers=[3], shared_expert_intermediate_size=24)
    moe = config.experts
    assert moe is not None and (moe.num_experts, moe.shared_size, moe.has_shared_gate) == (6, 24, True)
    assert [layer.feed_forward is moe for layer in config.layers] == [True, True, True, False]
    assert config.attention.qkv_bias and not config.attention.o_bias
    assert not read(tmp_path, NAME, qkv_bias=False).attention.qkv_bias


def test_windows(tmp_path: Path) -> None:
    window = {"sliding_window": 9, "max_window_layers": 3}
    assert read(tmp_path, NAME, **window, use_sliding_window=True).windows == (9, None, 9, None)
    assert read(tmp_path, NAME, sliding_window=0).windows == (None,) * 4, "as transformers saves it"
    types = ["full_attention", "sliding_attention"] * 2
    assert read(tmp_path, NAME, **window, use_sliding_window=True, layer_types=types).windows[1] == 9


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"num_experts": 3, "num_experts_per_tok": 4}, "at most 3 experts"),
        ({"num_experts": 6, "num_local_experts": 8}, "'num_experts' is 6, expected the same as"),
        ({"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
        ({"hidden_act": "relu"}, "'hidden_act' 'relu' is not supported"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
