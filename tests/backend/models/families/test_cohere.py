"""Command R: parallel blocks, norms of heads, and scaled logits."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "CohereForCausalLM"


def test_parts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, use_qk_norm=True)
    assert all(layer.is_parallel for layer in config.layers) and config.norm == "layer"
    rope = config.attention.rope
    assert rope is not None and rope.is_interleaved and config.attention.qk_norm == "layer"
    assert config.scalars.logits == 0.0625 and read(tmp_path, NAME).attention.qk_norm is None


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"logit_scale": 0}, "'logit_scale' is 0, expected a positive number"),
        ({"use_qk_norm": "x"}, "'use_qk_norm' is 'x'"),
        ({"hidden_act": "relu2"}, "'hidden_act' 'relu2' is not supported"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
