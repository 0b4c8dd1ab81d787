"""GLM-4: norms around sublayers, and its rotation."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from backend.models.families.glm4 import FAMILY
from tests.backend.models.families.configs import read

NAME = "Glm4ForCausalLM"


def test_rotation_norms_and_biases(tmp_path: Path) -> None:
    attention = read(tmp_path, NAME).attention
    assert attention.rope is not None and (attention.rope.rotated, attention.rope.is_interleaved) == (
        0.5,
        True,
    )
    assert (attention.qkv_bias, attention.o_bias) == (True, False)
    assert not FAMILY.names.norms_inputs_alone and FAMILY.names.gate_up is not None


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"partial_rotary_factor": 1.5}, "'partial_rotary_factor' is 1.5"),
        ({"attention_bias": 1}, "'attention_bias' is 1, expected true or false"),
        ({"hidden_act": "relu"}, "'hidden_act' 'relu' is not supported"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
