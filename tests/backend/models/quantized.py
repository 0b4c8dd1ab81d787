"""Tiny quantised checkpoints: weights rounded here, packed by the format, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.backend.models.checkpoints import Variant, write_checkpoint

Json = dict[str, Any]
Pack = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]
"""A weight [N, K] → tensors by the ending of their names, and the float32 weight that they stand for."""


def compressed(weights: Json, stored: str, inputs: Json | None = None) -> Json:
    """The quantization_config of compressed-tensors for one group of modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": stored, "config_groups": {"group_0": group}}


GROUP = 8
GPTQ: Json = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}
AWQ: Json = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
FP8_BLOCKS: Json = {"quant_method": "fp8", "weight_block_size": [32, 32], "activation_scheme": "dynamic"}
FP8 = compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, "float-quantized")
INT8 = compressed(
    {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
    "int-quantized",
    {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
)


def int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """One scale per row."""
    scales = weight.abs().amax(1, keepdim=True) / 127
    values = (weight / scales).round()
    return {".weight": values.to(torch.int8), ".weight_scale": scales}, values * scales


def fp8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """One scale per row."""
    scales = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scales).to(torch.float8_e4m3fn)
    return {".weight": values, ".weight_scale": scales}, values.float() * scales


def fp8_blocks(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """One scale per block of 32 x 32; those at the edges are smaller."""
    rows = [torch.stack([part.abs().amax() for part in row.split(32, 1)]) for row in weight.split(32, 0)]
    scales = torch.stack(rows) / 448
    spread = scales.repeat_interleave(32, 0).repeat_interleave(32, 1)[: len(weight), : weight.shape[1]]
    values = (weight / spread).to(torch.float8_e4m3fn)
    return {".weight": values, ".weight_scale_inv": scales}, values.float() * spread


def gptq(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Groups of shuffled columns, the same for all weights of one width."""
    k = weight.shape[1]
    groups = (torch.arange(k) // GROUP)[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
    values, zeros, scales = _asymmetric(weight, groups)
    tensors = {
        ".qweight": _words(values).T,
        ".qzeros": _words((zeros.T - 1) % 16),
        ".scales": scales.T,
        ".g_idx": groups.int(),
    }
    return tensors, (values - zeros[:, groups]) * scales[:, groups]


def awq(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Groups of neighbours; values interleaved within their word."""
    groups = torch.arange(weight.shape[1]) // GROUP
    values, zeros, scales = _asymmetric(weight, groups)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    index = (torch.arange(0, len(weight), 8)[:, None] + order).flatten()
    tensors = {
        ".qweight": _words(values.T[:, index]),
        ".qzeros": _words(zeros.T[:, index]),
        ".scales": scales.T,
    }
    return tensors, (values - zeros[:, groups]) * scales[:, groups]


def write_mxfp4(plain: Path, folder: Path) -> None:
    """The checkpoint `plain` with random blocks for its stacked experts, as they are published.

    Those of `plain` become what transformers decodes.
    """
    folder.mkdir()
    raw = json.loads((plain / "config.json").read_text())
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": section}))
    random = torch.Generator().manual_seed(0)
    tensors = load_file(plain / "model.safetensors")
    written = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = written.pop(name).shape
            shape = experts, rows, columns // 32
            blocks = torch.randint(0, 256, (*shape, 16), generator=random, dtype=torch.uint8)
            scales = torch.randint(121, 125, shape, generator=random, dtype=torch.uint8)
            written |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).to(tensor.dtype)
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    save_file(written, folder / "model.safetensors", {"format": "pt"})


def _asymmetric(weight: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unsigned values [N, K] of 4 bits, and each group's zero point and scale [N, G]."""
    columns = [weight[:, groups == group] for group in range(int(groups.max()) + 1)]
    low = torch.stack([part.amin(1) for part in columns], 1).clamp(max=0)
    high = torch.stack([part.amax(1) for part in columns], 1).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    values = (weight / scales[:, groups] + zeros[:, groups]).round().clamp(0, 15)
    return values, zeros, scales


def _words(values: Tensor) -> Tensor:
    """[R, C] values of 4 bits → [R, C / 8] int32, the first in the lowest bits."""
    nibbles = values.to(torch.int64).reshape(len(values), -1, 8)
    return (nibbles << torch.arange(0, 32, 4)).sum(-1).to(torch.int32)


def write_pair(
    variant: Variant, folder: Path, config: Json, pack: Pack, dtype: torch.dtype = torch.float32
) -> tuple[Path, Path]:
    """A checkpoint whose projections are quantised, and the same with their values in floats."""
    write_checkpoint(variant, folder / "plain", dtype)
    return quantize(folder / "plain", config, pack)


def quantize(plain: Path, config: Json, pack: Pack, others: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Write a folder with the checkpoint's projections quantised, and round its own to what these stand for.

    Embeddings, norms, routers and the head stay as they are, but for the modules `others`.
    """
    quantized = plain.with_name("quantized")
    quantized.mkdir()
    raw = json.loads((plain / "config.json").read_text())
    (quantized / "config.json").write_text(json.dumps({**raw, "quantization_config": config}))
    tensors = load_file(plain / "model.safetensors")
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if not name.endswith("_proj.weight") and ".experts." not in name and module not in others:
            stored[name] = tensor
            continue
        parts, value = pack(tensor.float())
        tensors[name] = value.to(tensor.dtype)
        stored.update({module + ending: part.contiguous() for ending, part in parts.items()})
    save_file(tensors, plain / "model.safetensors")
    save_file(stored, quantized / "model.safetensors")
    return quantized, plain
