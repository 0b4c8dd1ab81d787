"""SmolLM3: layers without rotation, and windows in those alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "SmolLM3ForCausalLM"


def rotated(tmp_path: Path, **changes: object) -> list[bool]:
    return [layer.attention.rope is not None for layer in read(tmp_path, NAME, **changes).layers]


def test_layers_without_rotation(tmp_path: Path) -> None:
    assert rotated(tmp_path) == [True, True, True, False]
    assert rotated(tmp_path, no_rope_layer_interval=2) == [True, False, True, False]
    assert rotated(tmp_path, no_rope_layers=[0, 1, 1, 0]) == [False, True, True, False]


def test_windows(tmp_path: Path) -> None:
    assert read(tmp_path, NAME, use_sliding_window=True, sliding_window=9).windows == (None, None, None, 9)
    assert read(tmp_path, NAME, sliding_window=9).windows == (None,) * 4
    types = ["sliding_attention"] + ["full_attention"] * 3
    assert read(tmp_path, NAME, sliding_window=9, layer_types=types).windows == (9, None, None, None)


def test_no_layer_is_rotated(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no_rope_layers"):
        read(tmp_path, NAME, no_rope_layer_interval=1)


@pytest.mark.parametrize("wrong", [[1, 0], "1010", [1, 1, 1, 2], [0, 0, 0, 0], [[1], 1, 1, 1]])
def test_a_wrong_list(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(CheckpointError, match="no_rope_layers"):
        read(tmp_path, NAME, no_rope_layers=wrong)
