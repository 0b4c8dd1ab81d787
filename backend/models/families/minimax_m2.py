"""MiniMax M2: experts by sigmoids and a bias, QK-norm over all heads, and a part of each head rotated."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts, sigmoid_routing
from backend.models.families import mixtral
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, same_layers
from backend.models.names import WeightNames
from backend.models.rope_config import read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """All layers alike; published files have `rotary_dim` in place of `partial_rotary_factor`."""
    scores = reader.raw.get("scoring_func", "sigmoid")
    if scores != "sigmoid":
        raise reader.unsupported("scoring_func", scores, "'sigmoid'")
    count = read_either(reader, ("num_local_experts", "num_experts"), 256)
    moe = read_experts(reader, count, normalise_top_k=True, size_key="intermediate_size")
    rope = read_rope(reader, can_be_partial=True)
    if (rotated := reader.optional_positive("rotary_dim")) is not None:
        share = rotated / reader.positive("head_dim")
        if rope.rotated not in (1, share):
            raise reader.error("rotary_dim", rotated, f"{rope.rotated} of head_dim, as partial_rotary_factor")
        rope = replace(rope, rotated=share)
    attention = replace(read_attention(reader, rope), qk_norm="all")
    return same_layers(reader, attention, replace(moe, routing=sigmoid_routing(reader, None)))


DEFAULTS = {
    "vocab_size": 200_064,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "num_hidden_layers": 62,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 196_608,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5_000_000.0,
    "num_experts_per_tok": 8,
}

FAMILY = Family(
    architecture="MiniMaxM2ForCausalLM",
    model_type="minimax_m2",
    defaults=DEFAULTS,
    names=WeightNames(
        experts=replace(mixtral.EXPERTS, router_bias="block_sparse_moe.e_score_correction_bias")
    ),
    read_layers=read_layers,
)
