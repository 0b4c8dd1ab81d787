"""Choosing the family of a config.json; wrong values: test_errors.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.errors import CheckpointError
from backend.models.checkpoint_config import read_model_config
from backend.models.families import FAMILIES, Family
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


def test_json_that_is_nested_too_deep(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="config.json cannot be read as JSON .*; download it again"):
        read_model_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "key"),
    [("LlamaForCausalLM", "rms_norm_eps"), ("CohereForCausalLM", "layer_norm_eps")],
)
def test_norms_without_a_positive_epsilon(tmp_path: Path, name: str, key: str) -> None:
    with pytest.raises(CheckpointError, match=f"config.json: '{key}' is -1e-05, expected a positive number"):
        read(tmp_path, name, **{key: -1e-5})


@pytest.mark.parametrize("count", [10_001, 10**10, 10**30])
def test_more_layers_than_any_model_has(tmp_path: Path, count: int) -> None:
    assert read(tmp_path, "LlamaForCausalLM", num_hidden_layers=10_000).num_layers == 10_000
    with pytest.raises(CheckpointError, match=f"config.json: 'num_hidden_layers' is {count}, expected "):
        read(tmp_path, "LlamaForCausalLM", num_hidden_layers=count)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_family_makes_lists_of_any_length(tmp_path: Path, family: Family) -> None:
    """One family refuses that `layer_types` is missing before it counts layers."""
    text = {"num_hidden_layers": 10**10, "num_experts_per_tok": 1}
    changes = {"text_config": text, **text} if family.texts else text
    with pytest.raises(
        CheckpointError, match="config.json: '(num_hidden_layers' is 10000000000|layer_types')"
    ):
        read(tmp_path, family.architecture, **changes)
