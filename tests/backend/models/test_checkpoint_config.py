"""Choosing the family and reading the rotary embedding from config.json; wrong values: test_errors.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.errors import CheckpointError
from backend.models.checkpoint_config import read_model_config
from tests.backend.models.families.configs import SHAPE, read


def test_the_first_known_architecture_is_chosen(tmp_path: Path) -> None:
    raw = {"architectures": ["SomethingElse", "Qwen3ForCausalLM", "LlamaForCausalLM"], **SHAPE}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert read_model_config(tmp_path).architecture == "Qwen3ForCausalLM"


def test_without_architectures_the_model_type_decides(tmp_path: Path) -> None:
    raw = {"model_type": "qwen3_moe", **SHAPE}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert read_model_config(tmp_path).architecture == "Qwen3MoeForCausalLM"
    (tmp_path / "config.json").write_text(json.dumps({**raw, "architectures": ["Qwen3MoeModel"]}))
    with pytest.raises(CheckpointError, match="'Qwen3MoeModel'"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": 5.0}, 5.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}, "rope_theta": 5.0}, 7.0),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 5.0}, 5.0),
    ],
)
def test_rope_theta_of_both_formats(tmp_path: Path, changes: dict[str, object], theta: float) -> None:
    assert read(tmp_path, "LlamaForCausalLM", **changes).rope.theta == theta


def test_yarn_factor_from_the_two_lengths(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    config = read(tmp_path, "LlamaForCausalLM", rope_parameters=rope)
    assert (config.rope.factor, config.rope.original_max_tokens) == (4.0, 128)
    assert config.rope.attention_factor == pytest.approx(1.1386294)
