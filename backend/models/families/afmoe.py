"""AFMoE (Arcee Trinity): gated attention without rotation in every fourth layer, and experts by sigmoids."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import (
    grouped,
    read_either,
    read_experts,
    sigmoid_routing,
    sparse_blocks,
    with_shared,
)
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import check_rotated, read_attention, typed_layers, windowed, with_biases
from backend.models.names import ExpertNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Full attention by `layer_types`, else in every `global_attn_every_n_layers`-th layer."""
    for key, only in (("score_func", "sigmoid"), ("route_norm", True)):
        if reader.raw.get(key, only) != only:
            raise reader.unsupported(key, reader.raw[key], repr(only))
    count = read_either(reader, ("num_experts", "num_local_experts"), 64)
    moe = read_experts(reader, count, normalise_top_k=True)
    moe = with_shared(
        reader, grouped(reader, moe, sigmoid_routing(reader, "route_scale")), "num_shared_experts"
    )
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    attention = replace(attention, qk_norm="head", output_gate="sigmoid")
    every, full = reader.positive("global_attn_every_n_layers"), replace(attention, rope=None)
    layers = typed_layers(reader, full, windowed(reader, attention), lambda layer: (layer + 1) % every != 0)
    blocks = sparse_blocks(reader, moe, "num_dense_layers", 1)
    return check_rotated(reader, tuple(map(LayerSpec, [layer.mixer for layer in layers], blocks)))


def read_scalars(reader: ConfigReader) -> Scalars:
    """With `mup_enabled`, embeddings times the root of their size."""
    scale = reader.positive("hidden_size") ** 0.5 if reader.flag("mup_enabled") else 1.0
    return Scalars(embedding=scale, exact_norms=True)


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 200_192,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 16,
    "head_dim": 128,
    "max_position_embeddings": 16_384,
    "rms_norm_eps": 1e-5,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "route_scale": 1.0,
    "global_attn_every_n_layers": 4,
    "sliding_window": 1024,
}

FAMILY = Family(
    architecture="AfmoeForCausalLM",
    model_type="afmoe",
    defaults=DEFAULTS,
    names=WeightNames(
        attention_out_norm="post_attention_layernorm.weight",
        mlp_norm="pre_mlp_layernorm.weight",
        mlp_out_norm="post_mlp_layernorm.weight",
        experts=ExpertNames(router="mlp.router.gate.weight", router_bias="mlp.expert_bias"),
    ),
    read_layers=read_layers,
    read_scalars=read_scalars,
)
