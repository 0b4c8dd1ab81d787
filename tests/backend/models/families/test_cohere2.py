"""Command R7B: windows, and rotation where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Cohere2ForCausalLM"


def test_windows_and_rotation(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, sliding_window=9)
    assert config.windows == (9, 9, 9, None)
    assert [layer.attention.rope is None for layer in config.layers] == [False, False, False, True]
    assert all(layer.is_parallel for layer in config.layers)
    types = ["full_attention", "sliding_attention"] * 2
    assert read(tmp_path, NAME, layer_types=types).windows == (None, 4096) * 2


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"sliding_window": 0}, "'sliding_window' is 0"),
        ({"sliding_window": None}, "models with rotation in some layer"),
        ({"layer_types": ["full_attention"] * 4}, "models with rotation in some layer"),
        ({"layer_types": ["full_attention"] * 3}, "'layer_types' is .*, expected a list of 4 names"),
        ({"sliding_window_pattern": 0}, "'sliding_window_pattern' is 0"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
