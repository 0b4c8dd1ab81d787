"""Experts that a checkpoint keeps in two tensors for each layer: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from backend.errors import AdapterError, CheckpointError
from backend.lora.adapter_weights import read_adapter
from backend.models.loaded import load_model
from tests.backend.lora import making
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

EXPERTS = "model.layers.1.mlp.experts."


def edited(folder: Path, name: str, tensor: Tensor | None) -> None:
    """Replace a tensor of the checkpoint, or remove it."""
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        ("gate_up_proj", torch.ones(5, 192, 64), r"has shape \[5, 192, 64\], .* implies \[5, 64, 192\]"),
        ("down_proj", torch.ones(4, 96, 64), r"has shape \[4, 96, 64\], .* implies \[5, 96, 64\]"),
        ("down_proj_bias", torch.ones(5, 65), r"has shape \[5, 65\]"),
        ("gate_up_proj", torch.ones(5, 64, 192, dtype=torch.int8), "is torch.int8"),
    ],
)
def test_a_wrong_tensor_is_refused_with_its_file(
    tmp_path: Path, name: str, tensor: Tensor, problem: str
) -> None:
    config = making.checkpoint("gpt-oss", tmp_path)
    edited(tmp_path, EXPERTS + name, tensor)
    with pytest.raises(CheckpointError, match=f"model.safetensors: '{EXPERTS}{name}' {problem}"):
        load_model(config)


@pytest.mark.parametrize("name", [EXPERTS + "gate_up_proj_bias", "model.layers.0.self_attn.sinks"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    config = making.checkpoint("gpt-oss", tmp_path)
    edited(tmp_path, name, None)
    with pytest.raises(CheckpointError, match=f"has no tensor '{name}'"):
        load_model(config)


def test_adapters_change_attention(tmp_path: Path) -> None:
    """An adapter does what merged weights do, beside a request without one."""
    config = making.checkpoint("gpt-oss", tmp_path / "base")
    model = load_model(config)
    ends = ("q_proj", "k_proj", "v_proj", "o_proj")
    assert {module.rpartition(".")[2] for module in model.sites} == {*ends, "lm_head"}
    recipe = making.Recipe(ends=ends)
    folder = making.write_adapter(tmp_path / "adapter", model, recipe)
    store = making.make_store(model)
    info = store.load_now("a", folder)
    asked = [making.ask(name, [1, 2, 3], name) for name in (info.digest, "")]
    adapted, plain = making.texts(making.make_engine(config, model, store), asked)
    merged = making.write_merged(tmp_path / "base", folder, tmp_path / "merged", recipe)
    assert adapted == making.greedy(merged, [1, 2, 3]) != plain == making.greedy(config, [1, 2, 3])


@pytest.mark.parametrize("parameter", ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
@pytest.mark.filterwarnings("ignore")
def test_adapters_of_experts_are_refused_by_name(tmp_path: Path, parameter: str) -> None:
    theirs = write_checkpoint(next(v for v in VARIANTS if v.name == "gpt-oss"), tmp_path / "base")
    lora = LoraConfig(r=2, target_modules=[], target_parameters=[parameter])
    get_peft_model(theirs, lora).save_pretrained(tmp_path / "adapter")
    config = making.EngineConfig(model="t", checkpoint=str(tmp_path / "base"), device="cpu", dtype="float32")
    with pytest.raises(AdapterError, match="no place for the tensor '.*mlp.experts.*lora_A.weight'"):
        read_adapter(tmp_path / "adapter", load_model(config).sites, 8, torch.float32)
