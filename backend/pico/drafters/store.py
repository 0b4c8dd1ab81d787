"""Storage of drafters. A head: config.json with its shape and `drafter`, and model.safetensors in bf16.

config.json also identifies the target by the SHA-256 of its weights. A head needs the target's token
embeddings, final norm and output matrix at run time and stores none of them. pico-draft is a plain checkpoint
in Hugging Face format.
"""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file

from backend.pico.drafters.draft import DraftModel
from backend.pico.drafters.drafter import Drafter
from backend.pico.drafters.eagle import Eagle, EagleConfig
from backend.pico.drafters.medusa import Medusa, MedusaConfig
from backend.pico.drafters.mixture_of_attentions import MixtureConfig, MixtureOfAttentions
from backend.pico.drafters.target import Target

WEIGHTS, CONFIG = "model.safetensors", "config.json"
MAX_HEADS_BYTES = 3_000_000
_BESIDE_WEIGHTS = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass(frozen=True, slots=True)
class Head:
    """A kind of drafter that is stored as a head of its target."""

    config: Any  # configuration class
    module: Any  # module class


HEADS: Mapping[str, Head] = {
    "medusa": Head(MedusaConfig, Medusa),
    "eagle": Head(EagleConfig, Eagle),
    "mixture_of_attentions": Head(MixtureConfig, MixtureOfAttentions),
}
DRAFTERS = ("draft", *HEADS)


def new_drafter(name: str, target: Target, seed: int) -> Drafter:
    """Return an untrained drafter, deterministic in the seed."""
    torch.manual_seed(seed)
    if name == "draft":
        drafter: Drafter = DraftModel.new(target, seed)
    else:
        head = HEADS[name]
        drafter = head.module(head.config.of_target(target))
    drafter.start_from(target)
    return drafter


def save_drafter(drafter: Drafter, target_folder: Path, folder: Path) -> None:
    """Write the drafter, rounded to bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(drafter, DraftModel):
        _save_model(drafter, target_folder, folder)
        return
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)
    name = next(name for name, head in HEADS.items() if isinstance(drafter, head.module))
    digest = hashlib.sha256((target_folder / WEIGHTS).read_bytes()).hexdigest()
    shape = asdict(cast("Any", drafter).config)
    config = {"drafter": name, **shape, "dtype": "bfloat16", "target_sha256": digest}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _save_model(drafter: DraftModel, target_folder: Path, folder: Path) -> None:
    model = copy.deepcopy(drafter.model).bfloat16()  # copied as a whole: tied matrices stay tied
    model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    (folder / WEIGHTS).chmod(0o644)
    for name in _BESIDE_WEIGHTS:
        if (target_folder / name).exists():
            shutil.copyfile(target_folder / name, folder / name)


def load_drafter(folder: Path) -> Drafter:
    """Load a drafter of either kind, in fp32."""
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if "drafter" not in config:
        from transformers import Qwen3ForCausalLM

        return DraftModel(Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32))
    head = HEADS.get(config["drafter"])
    if head is None:
        raise ValueError(f"{folder}: unknown drafter {config['drafter']!r}; known are {sorted(HEADS)}")
    names = head.config.__dataclass_fields__
    drafter: Drafter = head.module(head.config(**{name: config[name] for name in names}))
    weights = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    drafter.load_state_dict(weights)
    return drafter
