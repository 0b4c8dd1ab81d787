"""Hunyuan: norms after rotation, and the fixed factor of its base."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "HunYuanDenseV1ForCausalLM"


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["rope_type", "type"])
def test_a_fixed_alpha_is_a_larger_base(tmp_path: Path, key: str, kind: str) -> None:
    config = read(tmp_path, NAME, head_dim=18, **{key: {kind: "dynamic", "alpha": 1000.0, "factor": 1.0}})
    rope = config.attention.rope
    assert rope is not None and rope.theta == pytest.approx(1e4 * 1000 ** (18 / 16))
    assert config.attention.qk_norm == "rotated_head"


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'rope_type' 'dynamic' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "alpha": -1}}, "'alpha' is -1, expected a positive number"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 2}, "head_dim": 2}, "'head_dim' is 2, expected more"),
        ({"rope_scaling": {"type": "dynamic", "alpha": "x"}}, "'alpha' is 'x', expected a number"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
