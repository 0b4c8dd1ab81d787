"""EXAONE 4: which layers slide, and that others are not rotated."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

NAME = "Exaone4ForCausalLM"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [(4, (9, 9, 9, None)), (2, (9, None, 9, None)), ("LG", (9, None, 9, None)), ("LLG", (9, 9, None, None))],
)
def test_layers_that_slide(tmp_path: Path, pattern: object, expected: tuple[int | None, ...]) -> None:
    config = read(tmp_path, NAME, sliding_window=9, sliding_window_pattern=pattern)
    assert config.windows == expected
    assert [layer.attention.rope is not None for layer in config.layers] == [w is not None for w in expected]


def test_without_a_window_all_layers_are_rotated(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, sliding_window=None)
    assert config.windows == (None,) * 4 and all(layer.attention.rope for layer in config.layers)


def test_a_wrong_pattern(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="letters L and G"):
        read(tmp_path, NAME, sliding_window=9, sliding_window_pattern="LXG")
