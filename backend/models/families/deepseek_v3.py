"""DeepSeek-V3, Kimi K2: latent attention, experts in groups by sigmoids and a bias (arXiv:2412.19437)."""

from __future__ import annotations

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import (
    grouped,
    only,
    read_either,
    read_experts,
    sigmoid_routing,
    sparse_layers,
    with_shared,
)
from backend.models.families import llama
from backend.models.families.family import MTP_LAYER, Family
from backend.models.latent_specs import read_latent
from backend.models.names import ExpertNames, WeightNames


def read_layers(
    reader: ConfigReader, *, num_experts: int = 256, default_dense: int = 3
) -> tuple[LayerSpec, ...]:
    """The first `first_k_dense_replace` layers are dense; the experts' router has no other form."""
    only(reader, scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
    count = read_either(reader, ("n_routed_experts", "num_local_experts"), num_experts)
    moe = read_experts(reader, count, normalise_top_k=reader.flag("norm_topk_prob"))
    moe = grouped(reader, moe, sigmoid_routing(reader, "routed_scaling_factor"))
    attention = read_latent(reader, is_interleaved=reader.flag("rope_interleave"))
    return sparse_layers(reader, attention, with_shared(reader, moe, "n_shared_experts"), default_dense)


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 129_280,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 2048,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}

FAMILY = Family(
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    defaults=DEFAULTS,
    names=WeightNames(experts=ExpertNames()),
    read_layers=read_layers,
    others=MTP_LAYER,
)
