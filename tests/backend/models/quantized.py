"""Tiny quantised checkpoints: weights rounded here, packed by the format, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.backend.models.checkpoints import Variant, write_checkpoint

Pack = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
"""A weight [N, K] → tensors by the ending of their names, and the float32 weight that they stand for."""


def write_pair(
    variant: Variant, folder: Path, config: dict[str, Any], pack: Pack, dtype: torch.dtype = torch.float32
) -> tuple[Path, Path]:
    """A checkpoint whose projections are quantised, and the same with their values in floats.

    Embeddings, norms, routers and the head stay as they are.
    """
    quantized, plain = folder / "quantized", folder / "plain"
    write_checkpoint(variant, plain, dtype)
    quantized.mkdir()
    raw = json.loads((plain / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    tensors = load_file(plain / "model.safetensors")
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith("_proj.weight") and ".experts." not in name:
            stored[name] = tensor
            continue
        parts, value = pack(tensor.float())
        tensors[name] = value.to(dtype)
        module = name.removesuffix(".weight")
        stored.update({module + ending: part.contiguous() for ending, part in parts.items()})
    save_file(tensors, plain / "model.safetensors")
    save_file(stored, quantized / "model.safetensors")
    return quantized, plain
