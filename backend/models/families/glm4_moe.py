"""GLM-4.5 to 4.7: experts by sigmoids and a bias, half of each head rotated (arXiv:2508.06471)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import (
    grouped,
    read_either,
    read_experts,
    sigmoid_routing,
    sparse_layers,
    with_shared,
)
from backend.models.families import llama
from backend.models.families.family import MTP_LAYER, Family
from backend.models.layer_specs import read_attention
from backend.models.names import ExpertNames, WeightNames
from backend.models.rope_config import read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """The first `first_k_dense_replace` layers are dense; `use_qk_norm` adds QK-norm."""
    count = read_either(reader, ("n_routed_experts", "num_local_experts", "num_experts"), 128)
    moe = read_experts(reader, count, normalise_top_k=reader.flag("norm_topk_prob"))
    moe = grouped(reader, moe, sigmoid_routing(reader, "routed_scaling_factor"))
    attention = read_attention(reader, read_rope(reader, can_be_partial=True))
    attention = replace(attention, qkv_bias=reader.flag("attention_bias"))
    if reader.flag("use_qk_norm"):
        attention = replace(attention, qk_norm="head")
    return sparse_layers(reader, attention, with_shared(reader, moe, "n_shared_experts"), default_dense=1)


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 151_552,
    "intermediate_size": 10_944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}

FAMILY = Family(
    architecture="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    defaults=DEFAULTS,
    names=WeightNames(experts=ExpertNames()),
    read_layers=read_layers,
    others=MTP_LAYER,
)
