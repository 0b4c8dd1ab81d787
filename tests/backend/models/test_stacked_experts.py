"""Experts that a checkpoint keeps in two tensors for each layer: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from backend.config import EngineConfig
from backend.errors import AdapterError, CheckpointError
from backend.kernels.linear.int4 import Int4Weight
from backend.lora.adapter_weights import read_adapter
from backend.models.loaded import load_model
from tests.backend.lora import making
from tests.backend.models.checkpoints import VARIANTS, write_checkpoint
from tests.backend.models.driver import Driver, Track, random_tokens
from tests.backend.models.quantized import write_mxfp4

EXPERTS = "model.layers.1.mlp.experts."


@torch.no_grad()
def logits(folder: Path, tokens: list[int]) -> Tensor:
    config = EngineConfig(model="m", checkpoint=str(folder), device="cpu", dtype="float32")
    return Driver(load_model(config)).step([(Track(tokens), len(tokens))])[0]


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


def test_mxfp4_computes_as_what_transformers_decodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by transformers itself, which decodes the same files."""
    write_checkpoint(next(v for v in VARIANTS if v.name == "gpt-oss"), tmp_path / "plain")
    write_mxfp4(tmp_path / "plain", tmp_path / "mxfp4")
    tokens = random_tokens(40, seed=1)
    with monkeypatch.context() as context:
        context.setattr(Int4Weight, "fits", lambda *_: False)
        found, plain = (logits(tmp_path / name, tokens) for name in ("mxfp4", "plain"))
    assert torch.equal(found, plain)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path / "mxfp4", dtype=torch.float32, attn_implementation="eager"
    )
    torch.testing.assert_close(found, theirs(torch.tensor([tokens])).logits[0], atol=1e-4, rtol=1e-4)
    # The product in 4 bits rounds x to bfloat16: a router may choose otherwise.
    assert (logits(tmp_path / "mxfp4", tokens) - plain).abs().mean() < 0.06 * plain.std()


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        (
            "down_proj_scales",
            torch.full((5, 64, 3), 255, dtype=torch.uint8),
            "holds scales that are negative",
        ),
        ("down_proj_scales", torch.zeros(5, 64, 2, dtype=torch.uint8), r"has shape \[64, 2\], .* \[64, 3\]"),
        ("down_proj_scales", torch.zeros(4, 64, 3, dtype=torch.uint8), r"\[4, 64, 3\], .* implies 5 experts"),
        ("gate_up_proj_scales", None, "is missing"),
    ],
)
def test_broken_mxfp4_is_refused_by_name(
    tmp_path: Path, name: str, tensor: Tensor | None, problem: str
) -> None:
    write_checkpoint(next(v for v in VARIANTS if v.name == "gpt-oss"), tmp_path / "plain")
    write_mxfp4(tmp_path / "plain", tmp_path / "mxfp4")
    edited(tmp_path / "mxfp4", EXPERTS + name, tensor)
    with pytest.raises(CheckpointError, match=f"'{EXPERTS}{name}' .*{problem}"):
        logits(tmp_path / "mxfp4", [1])


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
    config = EngineConfig(model="t", checkpoint=str(tmp_path / "base"), device="cpu", dtype="float32")
    with pytest.raises(
        AdapterError, match="no place .*'.*mlp.experts.*lora_A.*modules k_proj, lm_head, o_proj, q"
    ):
        read_adapter(tmp_path / "adapter", load_model(config).sites, 8, torch.float32)
