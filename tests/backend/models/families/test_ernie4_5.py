"""ERNIE 4.5, dense: its rotation and biases."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import DenseSpec
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Ernie4_5ForCausalLM"


def test_rotation_and_biases(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, use_bias=True)
    attention, block = config.attention, config.layers[0].feed_forward
    assert attention.rope is not None and attention.rope.is_interleaved and attention.rope.theta == 500_000
    assert isinstance(block, DenseSpec) and block.has_bias and attention.qkv_bias and attention.o_bias
    assert not read(tmp_path, NAME).attention.qkv_bias and config.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"use_bias": "no"}, "'use_bias' is 'no', expected true or false"),
        ({"head_dim": 15}, "a share that makes an even number of the 15 dimensions"),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' 0.5 is not supported"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
