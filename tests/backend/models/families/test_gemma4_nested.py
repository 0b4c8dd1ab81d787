"""Gemma 4 with images and sound: what published checkpoints have beside the decoder is not loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import EngineConfig
from backend.errors import CheckpointError
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.families.configs import SHAPE, read

(SHARED,) = (variant for variant in VARIANTS if variant.name == "gemma4-nested")


def logits(directory: Path) -> torch.Tensor:
    model = load_model(EngineConfig(model="m", checkpoint=str(directory), device="cpu", dtype="float32"))
    (found,) = Driver(model).step([(Track(random_tokens(30, seed=1)), 30)])
    return found


def test_tensors_of_other_parts_and_of_shared_layers_are_left_out(tmp_path: Path) -> None:
    """Published files have keys and values of layers that read an earlier layer's."""
    write_checkpoint(SHARED, tmp_path)
    wanted, path = logits(tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(path)
    layer = "model.language_model.layers.3.self_attn."
    names = [layer + name for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight")]
    names += ["model.audio_tower.x.weight", "model.embed_vision.embedding_projection.weight"]
    save_file(tensors | {name: torch.ones(3) for name in names}, path, {"format": "pt"})
    assert torch.equal(logits(tmp_path), wanted)
    save_file(tensors | {f"{layer}z_proj.weight": torch.ones(3)}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match="z_proj"):
        logits(tmp_path)


def test_the_section_is_that_of_the_decoder(tmp_path: Path) -> None:
    config = read(tmp_path, "Gemma4ForConditionalGeneration", text_config={**SHAPE, "sliding_window": 9})
    assert config.windows == (9, 9, 9, None) and config.layers[0].inputs is not None
    with pytest.raises(CheckpointError, match="gemma4_text"):
        read(tmp_path, "Gemma4ForConditionalGeneration", text_config={**SHAPE, "model_type": "llama"})
