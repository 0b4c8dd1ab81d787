"""GLM-4.7-Flash: DeepSeek-V3 of another size, with experts in all layers but the first."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from backend.models.families import deepseek_v3
from backend.models.families.family import Family

DEFAULTS = {
    **deepseek_v3.DEFAULTS,
    "vocab_size": 154_880,
    "hidden_size": 2048,
    "intermediate_size": 10_240,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "max_position_embeddings": 202_752,
    "rms_norm_eps": 1e-5,
    "moe_intermediate_size": 1536,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.8,
}

FAMILY: Family = replace(
    deepseek_v3.FAMILY,
    architecture="Glm4MoeLiteForCausalLM",
    model_type="glm4_moe_lite",
    defaults=DEFAULTS,
    read_layers=partial(deepseek_v3.read_layers, num_experts=64, default_dense=1),
)
