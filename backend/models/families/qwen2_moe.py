"""Qwen2-MoE: Qwen2 with experts, and beside them a dense block with a gate (arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts
from backend.models.families import qwen2, qwen3_moe
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_attention, read_dense, read_layer_types, windowed
from backend.models.names import ExpertNames, WeightNames
from backend.models.rope_config import SLIDING


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Qwen3-MoE's layers with experts; Qwen2's biases unless `qkv_bias` is false."""
    count = read_either(reader, ("num_experts", "num_local_experts"), 60)
    moe = read_experts(reader, count, normalise_top_k=reader.flag("norm_topk_prob"))
    size = reader.positive("shared_expert_intermediate_size")
    moe, block = replace(moe, shared_size=size, has_shared_gate=True), read_dense(reader)
    attention = replace(read_attention(reader), qkv_bias=reader.flag("qkv_bias"))
    return tuple(
        LayerSpec(windowed(reader, attention) if slides else attention, moe if is_sparse else block)
        for slides, is_sparse in zip(_read_sliding(reader), qwen3_moe.read_sparse(reader), strict=True)
    )


def _read_sliding(reader: ConfigReader) -> list[bool]:
    """Only with `use_sliding_window`: by `layer_types`, else every other layer up to `max_window_layers`."""
    layers = range(num_layers(reader))
    if not reader.flag("use_sliding_window"):
        return [False for _ in layers]
    if (types := read_layer_types(reader)) is not None:
        return [name == SLIDING for name in types]
    end = reader.number("max_window_layers")
    return [layer % 2 == 0 and layer < end for layer in layers]


DEFAULTS = {
    **qwen2.DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1,
    "qkv_bias": True,
}

FAMILY = Family(
    architecture="Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    defaults=DEFAULTS,
    names=WeightNames(experts=ExpertNames(shared="mlp.shared_expert.")),
    read_layers=read_layers,
)
