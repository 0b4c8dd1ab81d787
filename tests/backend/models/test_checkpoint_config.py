"""Choosing the family of a config.json; wrong values: test_errors.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.errors import CheckpointError
from backend.models.checkpoint_config import read_model_config
from tests.backend.models.families.configs import SHAPE


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
