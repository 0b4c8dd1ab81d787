"""Muse Glimmer: which layers rotate, and its norms and factors."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config import ModelConfig, Scalars
from backend.errors import CheckpointError
from tests.backend.models.families.configs import SHAPE, read

NAME = "MuseGlimmerForConditionalGeneration"


def read_text(directory: Path, **changes: object) -> ModelConfig:
    text = {**SHAPE, "num_hidden_layers": 5, "head_dim": 16, **changes}
    return read(directory, NAME, num_hidden_layers=5, text_config=text, vision_config={})


def test_layers_from_the_last(tmp_path: Path) -> None:
    config = read_text(tmp_path, sliding_window=9)
    assert config.windows == (None, 9, 9, 9, None)
    assert [spec.rope is None for spec in config.attentions] == [True, False, False, False, True]
    assert config.attention.scale == pytest.approx(3.87 / 4)
    assert (config.attention.qk_norm, config.attention.output_gate) == ("unit", "sigmoid")


def test_rotation_does_not_follow_windows(tmp_path: Path) -> None:
    config = read_text(tmp_path, layer_rope_theta=[1e4, 0, 0, 1e4, 0])
    assert [spec.rope is None for spec in config.attentions] == [False, True, True, False, True]
    assert [window is None for window in config.windows] == [True, False, False, False, True]


def test_scalars(tmp_path: Path) -> None:
    assert read_text(tmp_path, output_multiplier=0.5, post_norm_eps=1e-7).scalars == Scalars(
        logits=0.5,
        softcap=20.0,
        norm_offset=1.0,
        exact_norms=True,
        final_norm_offset=0.0,
        out_norm_eps=1e-7,
        embedding_norm=True,
    )


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"layer_rope_theta": [0, 1e4]}, "'layer_rope_theta' is .*, expected a list of 5 numbers"),
        ({"layer_rope_theta": [0, 1e4, 5e5, 1e4, 0]}, "each 0 or rope_theta=10000.0"),
        ({"layer_rope_theta": [0] * 5}, "models with rotation in some layer"),
        ({"layer_rope_theta": [[0]] * 5}, "'layer_rope_theta' is"),
        ({"sliding_window": 0}, "'sliding_window' is 0"),
        ({"layer_types": ["full_attention"]}, "'layer_types' is .*, expected a list of 5 names"),
        ({"qk_scale_factor": 0}, "'qk_scale_factor' is 0"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read_text(tmp_path, **changes)
