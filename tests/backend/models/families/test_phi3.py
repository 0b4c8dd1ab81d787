"""Phi-3: rotation of a part of each head."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Phi3ForCausalLM"


@pytest.mark.parametrize("place", ["top", "rope"])
def test_rotated_part(tmp_path: Path, place: str) -> None:
    partial = {"partial_rotary_factor": 0.75}
    changes = partial if place == "top" else {"rope_parameters": {"rope_type": "default", **partial}}
    (rope,) = read(tmp_path, NAME, **changes).ropes
    assert rope.rotated == 0.75


@pytest.mark.parametrize("wrong", [0.1, 1.5, 0, "half"])
def test_a_wrong_part(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(CheckpointError, match="partial_rotary_factor"):
        read(tmp_path, NAME, partial_rotary_factor=wrong)
