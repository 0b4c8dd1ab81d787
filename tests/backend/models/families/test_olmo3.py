"""OLMo 3: windows in three of four layers, scaling in full attention alone."""

from __future__ import annotations

from pathlib import Path

from tests.backend.models.families.configs import read

NAME = "Olmo3ForCausalLM"


def test_windows(tmp_path: Path) -> None:
    assert read(tmp_path, NAME, sliding_window=9).windows == (9, 9, 9, None)


def test_scaling(tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    layers = read(tmp_path, NAME, rope_theta=7.0, rope_scaling=scaling).layers
    found = [(rope.rope_type, rope.theta) for layer in layers if (rope := layer.attention.rope) is not None]
    assert found == [("default", 7.0)] * 3 + [("linear", 7.0)]
