"""Arcee: relu² without a gate."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import DenseSpec
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "ArceeForCausalLM"


def test_block(tmp_path: Path) -> None:
    block = read(tmp_path, NAME, mlp_bias=True).layers[0].feed_forward
    assert block == DenseSpec(intermediate_size=96, has_bias=True, activation="relu2")
    assert not block.is_gated


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"hidden_act": "silu"}, "'hidden_act' 'silu' is not supported, only 'relu2'"),
        ({"mlp_bias": 2}, "'mlp_bias' is 2, expected true or false"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
