"""Loads base models and adapters, merges adapters, and adds new ones with PEFT."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from backend.pico.hyper_moe import load_sparse

if TYPE_CHECKING:
    from peft import PeftModel

    from backend.pico.adapters.specs import Spec
    from backend.pico.model import Model

WEIGHTS = Path(__file__).parents[1] / "weights"
ADAPTERS = WEIGHTS / "adapters"
_PREFIX = "base_model.model."


def load_base(folder: Path) -> tuple[Model, Tokenizer]:
    """Load a stored model of the family in fp32, dense or sparse, with its tokenizer."""
    from transformers import Qwen3ForCausalLM

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] == "qwen3_moe":
        return load_sparse(folder), tokenizer
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer


def adapt(model: Model, spec: Spec, seed: int) -> PeftModel:
    """Add a new adapter without effect to the model; its matrices are deterministic in the seed."""
    from peft import get_peft_model

    model.name_or_path = spec.base  # PEFT would write the path from which the base was loaded
    torch.manual_seed(seed)
    return get_peft_model(model, spec.config())


def save_adapter(adapted: PeftModel, folder: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors, rounded to bf16."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    rounded = {name: tensor.bfloat16() for name, tensor in state.items()}
    adapted.save_pretrained(str(folder), state_dict=rounded, save_embedding_layers=False)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])  # it is a set, in arbitrary order
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    (folder / "adapter_model.safetensors").chmod(0o644)


@torch.no_grad()
def merge(model: Model, folder: Path) -> None:
    """Merge a stored adapter into the model's weights."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    rank, alpha = config["r"], config["lora_alpha"]
    scale = alpha / (rank**0.5 if config["use_rslora"] else rank)
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, down in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        up = tensors[name.replace(".lora_A.", ".lora_B.")]
        weight = model.get_parameter(name.removeprefix(_PREFIX).replace(".lora_A.", "."))
        weight.add_(up.float() @ down.float(), alpha=scale)


def write_merged(base: Path, adapter: Path, folder: Path) -> None:
    """Write a checkpoint of the base with the adapter merged, in fp32."""
    model, _ = load_base(base)
    merge(model, adapter)
    model.save_pretrained(folder)
    for path in base.iterdir():
        if path.is_file() and not (folder / path.name).exists():
            shutil.copy(path, folder)
