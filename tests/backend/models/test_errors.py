"""Every way a checkpoint can be broken is one sentence that names the file, at start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.config import DeviceName, EngineConfig
from backend.errors import CheckpointError
from backend.models.loaded import load_model
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint

BY_NAME = {variant.name: variant for variant in VARIANTS}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_checkpoint(BY_NAME["qwen3"], tmp_path)
    return tmp_path


def load(directory: Path, device: DeviceName = "cpu") -> None:
    load_model(EngineConfig(model="m", checkpoint=str(directory), device=device))


def refuse(directory: Path, *fragments: str, device: DeviceName = "cpu") -> None:
    with pytest.raises(CheckpointError) as caught:
        load(directory, device)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    for fragment in fragments:
        assert fragment in message


def edit_config(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "config.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def edit_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_missing_folder(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere", "nowhere/config.json does not exist", "Hugging Face")


def test_config_is_not_json(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{broken")
    refuse(checkpoint, "config.json", "cannot be read as JSON")


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.self_attn.k_norm.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_number_that_is_not_finite(checkpoint: Path, name: str, value: float) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors[name].flatten()[-1:].fill_(value))
    refuse(checkpoint, "model.safetensors", repr(name), "not finite")


def test_config_is_a_list(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("[]")
    refuse(checkpoint, "config.json holds a list")


def test_unsupported_architecture(checkpoint: Path) -> None:
    edit_config(checkpoint, lambda raw: raw.update(architectures=["GPT2LMHeadModel"]))
    refuse(checkpoint, "'GPT2LMHeadModel'", "LlamaForCausalLM")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hidden_size", None, "a number"),
        ("hidden_size", "64", "a number"),
        ("num_hidden_layers", 0, "a positive whole number"),
        ("num_key_value_heads", 3, "a divisor of num_attention_heads=4"),
        ("rms_norm_eps", float("inf"), "a number"),
        ("hidden_size", float("nan"), "a number"),
        ("attention_bias", "false", "true or false"),
        ("rope_parameters", {"rope_type": "linear"}, "a number"),
        ("quantization_config", {"quant_method": "bitsandbytes"}, "'compressed-tensors'"),
    ],
)
def test_wrong_value(checkpoint: Path, key: str, value: object, expected: str) -> None:
    edit_config(checkpoint, lambda raw: raw.update({key: value}))
    refuse(checkpoint, "config.json", expected)


@pytest.mark.parametrize(
    ("changes", "key", "supported"),
    [
        ({"hidden_act": "gelu"}, "'hidden_act' 'gelu'", "'silu'"),
        ({"rope_parameters": {"rope_type": "axial"}}, "'rope_type' 'axial'", "'yarn' and 'longrope'"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "'rope_type' 'dynamic'",
            "'default', 'linear'",
        ),
        ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor' 0.5", "1.0"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "'partial_rotary_factor' 0.25", "1.0"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "'rope_parameters'",
            "all layers",
        ),
    ],
)
def test_what_is_not_supported_is_no_fault_of_the_file(
    checkpoint: Path, changes: dict[str, Any], key: str, supported: str
) -> None:
    """Changing the value would load the checkpoint and give wrong output."""
    edit_config(checkpoint, lambda raw: raw.update(changes))
    refuse(checkpoint, f"{key} ", "is not supported", supported, "choose another checkpoint")
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint)
    assert "repair" not in str(caught.value)


def test_swish_is_silu(checkpoint: Path) -> None:
    edit_config(checkpoint, lambda raw: raw.update(hidden_act="swish"))
    load(checkpoint)


def test_no_weights(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    refuse(checkpoint, "holds no *.safetensors file")


@pytest.mark.parametrize("size", [0, 5, 400, -1000])
def test_truncated_file(checkpoint: Path, size: int) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refuse(checkpoint, "model.safetensors", "download")


def test_missing_tensor(checkpoint: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    edit_tensors(checkpoint, lambda tensors: tensors.pop(name))
    refuse(checkpoint, repr(name), "incomplete")


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("glm4-moe", "model.layers.1.mlp.gate.e_score_correction_bias"),
        ("ernie4.5-moe", "model.layers.1.mlp.moe_statics.e_score_correction_bias"),
        ("qwen2-moe", "model.layers.0.mlp.shared_expert_gate.weight"),
        ("hy3", "model.layers.1.mlp.shared_mlp.up_proj.weight"),
    ],
)
def test_missing_tensor_beside_experts(variant: str, name: str, tmp_path: Path) -> None:
    write_checkpoint(BY_NAME[variant], tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop(name))
    refuse(tmp_path, repr(name), "incomplete")


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.3.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_proj.weight_scale",
        "adapter.weight",
    ],
)
def test_left_over_tensor(checkpoint: Path, name: str) -> None:
    edit_tensors(checkpoint, lambda tensors: tensors.update({name: torch.ones(2)}))
    refuse(checkpoint, f"model.safetensors: {name!r}", "does not have")


def test_what_old_checkpoints_hold_as_well(checkpoint: Path) -> None:
    """Angles, and a copy of the embedding as the head."""
    angles = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    edit_tensors(checkpoint, lambda tensors: tensors.update(angles))
    copied = "model.embed_tokens.weight"
    edit_tensors(checkpoint, lambda tensors: tensors.update({"lm_head.weight": tensors[copied].clone()}))
    load(checkpoint)


def test_a_head_of_its_own_is_not_tied(checkpoint: Path) -> None:
    """Whatever config.json says about tying, and transformers does the same."""
    own = torch.full((199, 64), 0.5)
    edit_tensors(checkpoint, lambda tensors: tensors.update({"lm_head.weight": own}))
    model = load_model(EngineConfig(model="m", checkpoint=str(checkpoint), device="cpu"))
    assert len(set(model.logits(torch.ones(1, 64))[0].tolist())) == 1


def test_wrong_shape(checkpoint: Path) -> None:
    edit_config(checkpoint, lambda raw: raw.update(intermediate_size=100))
    refuse(checkpoint, "mlp.gate_proj.weight", "[96, 64]", "[100, 64]")


def test_integer_weights(checkpoint: Path) -> None:
    name = "model.norm.weight"
    edit_tensors(checkpoint, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    refuse(checkpoint, repr(name), "int8", "unquantised")


def test_missing_shard_and_broken_index(tmp_path: Path) -> None:
    write_checkpoint(BY_NAME["llama"], tmp_path, max_shard_size="100KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    shards[1].unlink()
    refuse(tmp_path, shards[1].name, "index.json names it")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    refuse(tmp_path, "is not a safetensors index")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without cuda")
def test_cuda_asked_for_and_absent(checkpoint: Path) -> None:
    refuse(checkpoint, "'cuda'", "'auto'", device="cuda")
    refuse(checkpoint, "'cuda:1'", "'auto'", device="cuda:1")


def test_a_card_that_is_not_there(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    refuse(checkpoint, "'cuda:2'", "'cuda:0' to 'cuda:1'", device="cuda:2")
