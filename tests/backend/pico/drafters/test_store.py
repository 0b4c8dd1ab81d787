"""A stored drafter drafts as before, and names its target."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from backend.pico.drafters.eagle import Eagle, EagleConfig
from backend.pico.drafters.medusa import Medusa, MedusaConfig
from backend.pico.drafters.mixture_of_attentions import MixtureConfig, MixtureOfAttentions
from backend.pico.drafters.store import (
    DRAFTERS,
    HEADS,
    MAX_HEADS_BYTES,
    load_drafter,
    new_drafter,
    save_drafter,
)
from backend.pico.drafters.target import Target, View


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.mark.parametrize("name", DRAFTERS)
def test_round_trip(name: str, target: Target, view: View, target_folder: Path, tmp_path: Path) -> None:
    drafter = new_drafter(name, target, 1)
    for parameter in drafter.parameters():
        parameter.data = (parameter.data + 0.01 * torch.randn(parameter.shape)).bfloat16().float()
    save_drafter(drafter, target_folder, tmp_path / "out")
    read = load_drafter(tmp_path / "out")
    assert torch.equal(read.drafts(target, view), drafter.drafts(target, view))
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_all_heads_of_the_large_model_together_are_small() -> None:
    layer = (192, 384, 6, 2, 32, 1e-6, 10000.0)
    heads = (
        Medusa(MedusaConfig(192)),
        Eagle(EagleConfig(*layer)),
        MixtureOfAttentions(MixtureConfig(*layer, num_target_layers=5)),
    )
    assert sum(2 * parameter.numel() for head in heads for parameter in head.parameters()) <= MAX_HEADS_BYTES


@pytest.mark.parametrize("name", HEADS)
def test_config_names_drafter_and_target(
    name: str, target: Target, target_folder: Path, tmp_path: Path
) -> None:
    save_drafter(new_drafter(name, target, 1), target_folder, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["drafter"] == name
    assert config["hidden_size"] == target.shape.hidden_size
    assert config["target_sha256"] == hashlib.sha256(b"weights").hexdigest()


def test_a_draft_model_brings_its_tokenizer(target: Target, target_folder: Path, tmp_path: Path) -> None:
    save_drafter(new_drafter("draft", target, 1), target_folder, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


def test_an_unknown_drafter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"drafter": "oracle"}')
    with pytest.raises(ValueError, match="unknown drafter 'oracle'"):
        load_drafter(tmp_path)
