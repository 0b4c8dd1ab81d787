"""Hy3: experts by sigmoids and a bias in all but the first layer, and QK-norm."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import (
    read_either,
    read_experts,
    sigmoid_routing,
    sparse_layers,
    with_shared,
)
from backend.models.families import llama
from backend.models.families.family import MTP_LAYER, Family
from backend.models.layer_specs import read_attention, with_biases
from backend.models.names import ExpertNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Experts by `mlp_layer_types`; shares times `router_scaling_factor`."""
    if reader.flag("mlp_bias"):
        raise reader.unsupported("mlp_bias", True, "false")
    count = read_either(reader, ("num_experts", "num_local_experts"), 192)
    moe = read_experts(reader, count, normalise_top_k=True)
    moe = replace(moe, routing=sigmoid_routing(reader, "router_scaling_factor"))
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    attention = replace(attention, qk_norm="head")
    return sparse_layers(reader, attention, with_shared(reader, moe, "num_shared_experts"), default_dense=1)


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 120_832,
    "intermediate_size": 13_312,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 11_158_840.0,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "router_scaling_factor": 2.826,
}

FAMILY = Family(
    architecture="HYV3ForCausalLM",
    model_type="hy_v3",
    defaults=DEFAULTS,
    names=WeightNames(
        experts=ExpertNames(
            router="mlp.router.gate.weight", router_bias="mlp.expert_bias", shared="mlp.shared_mlp."
        )
    ),
    read_layers=read_layers,
    others=MTP_LAYER,
)
