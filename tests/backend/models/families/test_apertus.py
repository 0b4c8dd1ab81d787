"""Apertus: its activation, and the rotation of files that name none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import DenseSpec, EngineConfig
from backend.errors import CheckpointError
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.families.configs import read

NAME = "ApertusForCausalLM"


def test_parts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, rope_theta=1e6)
    rope = config.attention.rope
    assert rope is not None and (rope.rope_type, rope.theta, rope.factor) == ("llama3", 1e6, 8.0)
    assert config.layers[0].feed_forward == DenseSpec(intermediate_size=96, activation="xielu")
    assert config.attention.qk_norm == "head"


def test_numbers_of_activations_are_checked(tmp_path: Path) -> None:
    variant = next(each for each in VARIANTS if each.model_type == "apertus")
    write_checkpoint(variant, tmp_path)
    path, name = tmp_path / "model.safetensors", "model.layers.1.mlp.act_fn.alpha_p"
    tensors = load_file(path)
    for value in (torch.ones(2), torch.tensor([float("nan")])):
        save_file({**tensors, name: value}, path)
        with pytest.raises(CheckpointError, match=f"{name}' is not one finite number"):
            load_model(EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu"))


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"hidden_act": "silu"}, "'hidden_act' 'silu' is not supported, only 'xielu'"),
    ],
)
def test_wrong_values(tmp_path: Path, changes: dict[str, object], fragment: str) -> None:
    with pytest.raises(CheckpointError, match=fragment):
        read(tmp_path, NAME, **changes)
