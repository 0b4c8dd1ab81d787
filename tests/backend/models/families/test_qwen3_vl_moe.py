"""Qwen3-VL with experts: both layouts of its stacked experts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import EngineConfig
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import QWEN_MOE, QWEN_VISION, Variant, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens


@pytest.mark.parametrize("size", [40, 32, 64])
def test_experts_as_published_and_as_saved(tmp_path: Path, size: int) -> None:
    """Published files transpose them. With 32, gates and ups are square; with 64, the way down is."""
    text = {**QWEN_MOE, "moe_intermediate_size": size}
    write_checkpoint(Variant("moe", "qwen3_vl_moe", {"text_config": text, **QWEN_VISION}), tmp_path)
    path = tmp_path / "model.safetensors"

    def logits() -> torch.Tensor:
        model = load_model(EngineConfig(model="m", checkpoint=str(tmp_path), device="cpu", dtype="float32"))
        return Driver(model).step([(Track(random_tokens(20, seed=1)), 20)])[0]

    expected, tensors = logits(), load_file(path)
    stacked = {name: each.mT.contiguous() for name, each in tensors.items() if ".experts." in name}
    assert len(stacked) == 6
    save_file(tensors | stacked, path)
    assert torch.equal(logits(), expected)
