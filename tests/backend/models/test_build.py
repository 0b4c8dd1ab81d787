"""Where the head is tied to the embedding, both are one tensor, and compute what two would."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import EngineConfig
from backend.models.loaded import LoadedModel, load_model
from tests.backend.models.checkpoints import write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.variant import GEMMA, MHA, TIED, Variant

ROOT_OF_80 = Variant("gemma3", "gemma3_text", {**GEMMA, "hidden_size": 80})


def load(directory: Path) -> LoadedModel:
    """In the layout of GPUs."""
    return load_model(EngineConfig(model="m", checkpoint=str(directory), device="cpu", dtype="bfloat16"))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("variant", [Variant("llama", "llama", {**MHA, **TIED}), ROOT_OF_80])
def test_a_tied_head_is_the_embedding(tmp_path: Path, variant: Variant, stored: torch.dtype) -> None:
    """Also where the table is rounded, and its rows are multiplied by a number that depends on its dtype."""
    write_checkpoint(variant, tmp_path, stored)
    tied = load(tmp_path)
    assert tied.decoder.embedding.weight.data_ptr() == tied.decoder.head.matrix.data_ptr()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
    apart = load(tmp_path)
    assert apart.decoder.embedding.weight.data_ptr() != apart.decoder.head.matrix.data_ptr()
    found, expected = (
        Driver(model).step([(Track(random_tokens(20, seed=1)), 20)])[0] for model in (tied, apart)
    )
    assert torch.equal(found, expected)
