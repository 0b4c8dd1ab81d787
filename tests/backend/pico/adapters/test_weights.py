"""PEFT can load what is saved, and merged weights compute the same as PEFT's layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from backend.pico.adapters.export import MAX_BYTES
from backend.pico.adapters.specs import SPECS
from backend.pico.adapters.weights import (
    ADAPTERS,
    WEIGHTS,
    adapt,
    load_base,
    merge,
    save_adapter,
    write_merged,
)

if TYPE_CHECKING:
    from backend.pico.model import Model

# PEFT reads a transformers property by its deprecated name.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
SHIPPED = sorted(path.name for path in ADAPTERS.iterdir()) if ADAPTERS.exists() else []


def logits(model: Model | PeftModel) -> torch.Tensor:
    ids = torch.arange(100, 132).view(2, 16)
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids).logits
    return found


def save_random(base: Path, name: str, folder: Path) -> None:
    adapted = adapt(load_base(base)[0], SPECS[name], seed=1)
    generator = torch.Generator().manual_seed(2)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    save_adapter(adapted, folder)


@pytest.mark.parametrize("name", ["json", "codewords", "si", "json-large"])
def test_peft_reads_the_folder_and_agrees_with_merged_weights(
    name: str, tiny_small: Path, tiny_large: Path, tmp_path: Path
) -> None:
    base = tiny_large if SPECS[name].base == "pico-large" else tiny_small
    save_random(base, name, tmp_path)
    plain, (merged, _) = load_base(base)[0], load_base(base)
    before = logits(plain)
    by_peft = logits(PeftModel.from_pretrained(plain, str(tmp_path)))
    merge(merged, tmp_path)
    torch.testing.assert_close(logits(merged), by_peft, atol=1e-4, rtol=1e-4)
    assert (by_peft - before).abs().max() > 0.01

    write_merged(base, tmp_path, tmp_path / "merged")
    torch.testing.assert_close(logits(load_base(tmp_path / "merged")[0]), logits(merged))


def test_configuration_names_the_base_and_sorts_the_targets(tiny_small: Path, tmp_path: Path) -> None:
    save_random(tiny_small, "json", tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "pico-small"
    assert config["target_modules"] == sorted(SPECS["json"].targets)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in tensors


def test_a_new_adapter_changes_nothing_and_follows_its_seed(tiny_small: Path) -> None:
    plain = load_base(tiny_small)[0]
    before = logits(plain)
    first = adapt(plain, SPECS["json"], seed=4)
    torch.testing.assert_close(logits(first), before)
    second = adapt(load_base(tiny_small)[0], SPECS["json"], seed=4)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_adapters_fit_their_bases(name: str) -> None:
    folder, spec = ADAPTERS / name, SPECS[name]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == spec.base
    assert (config["r"], config["use_rslora"]) == (spec.rank, spec.is_rank_stabilised)
    assert (folder / "adapter_model.safetensors").stat().st_size <= MAX_BYTES
    assert spec.base in (folder / "README.md").read_text()
    model = load_base(WEIGHTS / spec.base)[0]
    before = logits(model)
    merge(model, folder)
    assert not torch.equal(logits(model), before)
