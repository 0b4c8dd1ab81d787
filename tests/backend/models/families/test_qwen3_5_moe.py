"""Qwen3.5 with experts: their number and size, and experts that are stored in two tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.config import EngineConfig, MoEConfig
from backend.errors import CheckpointError
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.families.configs import read

NAME = "Qwen3_5MoeForCausalLM"


def test_experts(tmp_path: Path) -> None:
    config = read(tmp_path, NAME, num_experts=20, shared_expert_intermediate_size=48)
    moe = config.experts
    assert moe == MoEConfig(20, 8, 512, True, shared_size=48, has_shared_gate=True)
    assert {layer.feed_forward for layer in config.layers} == {moe} and len(config.states) == 3


def test_contradictory_numbers_of_experts(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match="'num_experts' is 20, expected the same as 'num_local_experts'"
    ):
        read(tmp_path, NAME, num_experts=20, num_local_experts=21)


@torch.no_grad()
def logits(folder: Path) -> Tensor:
    config = EngineConfig(model="m", checkpoint=str(folder), device="cpu", dtype="float32")
    return Driver(load_model(config)).step([(Track(random_tokens(30, seed=1)), 30)])[0]


def test_experts_in_two_tensors(tmp_path: Path) -> None:
    """Published ones are so: [E, 2 I, D], all gates before the ups, and [E, D, I]."""
    write_checkpoint(next(v for v in VARIANTS if v.name == "qwen3.5-moe"), tmp_path)
    apart = logits(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(4):
        prefix = f"model.layers.{layer}.mlp.experts."
        own = [
            [tensors.pop(f"{prefix}{expert}.{name}_proj.weight") for name in ("gate", "up", "down")]
            for expert in range(5)
        ]
        tensors[prefix + "gate_up_proj"] = torch.stack([torch.cat(each[:2]) for each in own])
        tensors[prefix + "down_proj"] = torch.stack([each[2] for each in own])
    save_file(tensors, tmp_path / "model.safetensors")
    torch.testing.assert_close(logits(tmp_path), apart, rtol=0, atol=1e-5)
