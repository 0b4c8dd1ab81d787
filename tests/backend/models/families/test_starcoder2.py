"""StarCoder2: its norms, biases and window."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import DenseSpec
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Starcoder2ForCausalLM"


def test_parts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, sliding_window=9, norm_epsilon=1e-3)
    assert config.norm == "biased_layer" and config.rms_norm_eps == 1e-3 and config.windows == (9,) * 4
    assert config.attention.qkv_bias and config.attention.o_bias
    block = DenseSpec(intermediate_size=96, has_bias=True, activation="plain_gelu_tanh")
    assert config.layers[0].feed_forward == block
    assert not read(tmp_path, NAME, use_bias=False).attention.qkv_bias


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"hidden_act": "silu"}, "'hidden_act' 'silu' is not supported, only 'gelu_pytorch_tanh'"),
        ({"sliding_window": 0}, "'sliding_window' is 0"),
        ({"norm_epsilon": None}, "'norm_epsilon' is None, expected a number"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
