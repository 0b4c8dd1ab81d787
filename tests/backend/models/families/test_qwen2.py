"""Qwen2: biases without a key, and three ways to say which layers have a window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.errors import CheckpointError
from tests.backend.models.families.configs import read

WINDOW = {"sliding_window": 9, "use_sliding_window": True}


def test_biases(tmp_path: Path) -> None:
    config = read(tmp_path, "Qwen2ForCausalLM")
    assert config.attention.qkv_bias and not config.attention.o_bias and not config.attention.qk_norm


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": 9, "use_sliding_window": False}, (None,) * 4),
        ({"sliding_window": None, "use_sliding_window": True}, (None,) * 4),
        ({**WINDOW, "max_window_layers": 3}, (None, None, None, 9)),
        (WINDOW, (None,) * 4),  # max_window_layers is 28
        ({"use_sliding_window": True, "max_window_layers": 2}, (None, None, 4096, 4096)),
        ({**WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}, (9, None, 9, None)),
    ],
)
def test_windows(tmp_path: Path, changes: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    assert read(tmp_path, "Qwen2ForCausalLM", **changes).windows == expected


@pytest.mark.parametrize("layer_types", [["full_attention"], ["linear_attention"] * 4])
def test_wrong_layer_types(tmp_path: Path, layer_types: list[str]) -> None:
    with pytest.raises(CheckpointError, match="layer_types"):
        read(tmp_path, "Qwen2ForCausalLM", **WINDOW, layer_types=layer_types)
