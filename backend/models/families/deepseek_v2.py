"""DeepSeek-V2 and V2-Lite: latent attention, and experts by softmax, in groups or not (arXiv:2405.04434)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, RoutingConfig
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import (
    grouped,
    only,
    read_either,
    read_experts,
    sparse_layers,
    with_shared,
)
from backend.models.families import deepseek_v3
from backend.models.families.family import Family
from backend.models.latent_specs import read_latent
from backend.models.names import ExpertNames, WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """`topk_method` greedy: groups do not count."""
    only(reader, scoring_func="softmax", moe_layer_freq=1, norm_topk_prob=False, mlp_bias=False)
    count = read_either(reader, ("n_routed_experts", "num_experts"), 64)
    moe = read_experts(reader, count, normalise_top_k=False)
    method = reader.raw["topk_method"]
    if method not in ("greedy", "group_limited_greedy"):
        raise reader.unsupported("topk_method", method, "'greedy' and 'group_limited_greedy'")
    routing = RoutingConfig(group_score="max", share_factor=reader.positive_number("routed_scaling_factor"))
    moe = replace(moe, routing=routing) if method == "greedy" else grouped(reader, moe, routing)
    attention = read_latent(reader, is_interleaved=True)
    return sparse_layers(reader, attention, with_shared(reader, moe, "n_shared_experts"), default_dense=0)


DEFAULTS = {
    **deepseek_v3.DEFAULTS,
    "vocab_size": 102_400,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1407,
    "num_experts_per_tok": None,
    "n_shared_experts": 2,
    "n_group": None,
    "topk_group": None,
    "topk_method": "greedy",
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
}

FAMILY = Family(
    architecture="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    defaults=DEFAULTS,
    names=WeightNames(experts=ExpertNames()),
    read_layers=read_layers,
)
