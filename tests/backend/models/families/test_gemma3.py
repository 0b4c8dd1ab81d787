"""Gemma 3: windows by pattern, and rotary embeddings by type in the spellings of both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import RopeConfig
from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Gemma3ForCausalLM"


def test_windows(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, sliding_window=9, sliding_window_pattern=2)
    assert config.windows == (9, None, 9, None) and config.attention.qk_norm == "head"
    assert read(tmp_path, NAME).windows == (4096,) * 4  # every sixth layer is full


@pytest.mark.parametrize(
    "changes",
    [
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 1e3,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            }
        },
    ],
)
def test_rotary_embeddings_of_both_formats(tmp_path: Path, changes: dict[str, object]) -> None:
    layers = read(tmp_path, NAME, sliding_window_pattern=2, **changes).layers
    sliding, full = layers[0].attention.rope, layers[1].attention.rope
    assert sliding == RopeConfig(theta=1e3)
    assert full is not None and (full.rope_type, full.theta, full.factor) == ("linear", 5e5, 8.0)


def test_a_type_without_rotary_embedding(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="'sliding_attention'"):
        read(tmp_path, NAME, rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e4}})
