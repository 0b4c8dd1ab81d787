"""Nemotron-4: its norms, and the share of heads that is rotated."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "NemotronForCausalLM"


def test_parts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, norm_eps=1e-3)
    rope = config.attention.rope
    assert rope is not None and rope.rotated == 0.5
    assert (config.norm, config.scalars.norm_offset, config.rms_norm_eps) == ("biased_layer", 1.0, 1e-3)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"hidden_act": "gelu"}, "'hidden_act' 'gelu' is not supported, only 'relu2'"),
        ({"partial_rotary_factor": 0}, "'partial_rotary_factor' is 0"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
