"""Mixers with a state: which layers have one, and what is refused of their tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.layers.attention import Attention
from backend.layers.gated_delta import GatedDeltaNet
from backend.layers.mamba2 import Mamba2
from backend.layers.short_conv import ShortConv
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint


def written(folder: Path, name: str) -> EngineConfig:
    write_checkpoint(next(v for v in VARIANTS if v.name == name), folder)
    return EngineConfig(model="m", checkpoint=str(folder), device="cpu", dtype="float32")


@pytest.mark.parametrize(
    ("name", "kind"),
    [("qwen3.5-types", GatedDeltaNet), ("lfm2-biases", ShortConv), ("granite-hybrid", Mamba2)],
)
def test_states_are_numbered_apart_from_attention(tmp_path: Path, name: str, kind: type) -> None:
    model = load_model(written(tmp_path, name))
    mixers = [layer.mixer for layer in model.decoder.layers]
    numbers = [each.state for each in mixers if isinstance(each, GatedDeltaNet | ShortConv | Mamba2)]
    layers = [each.shape.layer for each in mixers if isinstance(each, Attention)]
    assert numbers == list(range(len(model.config.states))) and any(type(each) is kind for each in mixers)
    assert layers == list(range(4 - len(numbers)))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("qwen3.5", "model.layers.0.linear_attn.A_log"),
        ("qwen3.5", "model.layers.0.linear_attn.conv1d.weight"),
        ("lfm2", "model.layers.0.conv.conv.weight"),
        ("lfm2-biases", "model.layers.0.conv.conv.bias"),
        ("granite-hybrid", "model.layers.0.mamba.D"),
        ("granite-hybrid", "model.layers.0.mamba.norm.weight"),
    ],
)
def test_a_tensor_of_another_shape(tmp_path: Path, name: str, tensor: str) -> None:
    config = written(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[tensor] = torch.ones(3, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{tensor}' has shape .3, 1., config.json implies"):
        load_model(config)
