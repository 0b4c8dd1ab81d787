"""Laguna: heads that differ by layer, each with a gate by softplus, and experts by sigmoids and a bias."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LayerSpec, OutputGateKind
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import read_either, read_experts, sigmoid_routing, sparse_blocks
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_attention, read_layer_types, windowed, with_biases
from backend.models.names import ExpertNames, WeightNames
from backend.models.rope_config import FULL, SLIDING, read_ropes


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Experts by `mlp_layer_types`, by default in all layers but the first; shares times a factor."""
    if reader.flag("moe_apply_router_weight_on_input"):
        raise reader.unsupported("moe_apply_router_weight_on_input", True, "false")
    moe = read_experts(
        reader, read_either(reader, ("num_experts", "num_local_experts"), 256), normalise_top_k=True
    )
    key = "moe_router_logit_softcapping"
    softcap = reader.positive_number(key) if reader.raw.get(key) else None
    routing = replace(sigmoid_routing(reader, "moe_routed_scaling_factor"), softcap=softcap)
    moe = replace(moe, routing=routing, shared_size=reader.positive("shared_expert_intermediate_size"))
    return tuple(map(LayerSpec, read_mixers(reader), sparse_blocks(reader, moe, "first_k_dense_replace", 1)))


def read_mixers(reader: ConfigReader) -> list[AttentionSpec]:
    """By `layer_types`, all full by default, with the heads of `num_attention_heads_per_layer`."""
    count, ropes = num_layers(reader), read_ropes(reader, local_theta=10_000.0, can_be_partial=True)
    heads = reader.raw.get("num_attention_heads_per_layer")
    heads = [reader.positive("num_attention_heads")] * count if heads is None else heads
    if not isinstance(heads, list) or len(heads) != count:
        raise reader.error("num_attention_heads_per_layer", heads, f"a list of {count} numbers")
    found = []
    for own, name in zip(heads, read_layer_types(reader) or [FULL] * count, strict=True):
        section = ConfigReader(reader.path, {**reader.raw, "num_attention_heads": own})
        spec = with_biases(read_attention(section, ropes[name]), reader.flag("attention_bias"))
        spec = replace(spec, qk_norm="head", output_gate=read_gate(reader))
        found.append(windowed(reader, spec) if name == SLIDING else spec)
    return found


def read_gate(reader: ConfigReader) -> OutputGateKind:
    """`gating`: true is the same as "per-head"."""
    name = reader.raw.get("gating", True)
    if name not in (True, "per-head", "per-element"):
        raise reader.unsupported("gating", name, "true, 'per-head' and 'per-element'")
    return "softplus" if name == "per-element" else "head_softplus"


DEFAULTS = {
    **llama.DEFAULTS,
    **{"vocab_size": 100_352, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 40},
    **{"num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 512},
    **{"max_position_embeddings": 131_072, "num_experts_per_tok": 8, "moe_intermediate_size": 512},
    **{"shared_expert_intermediate_size": 512, "moe_routed_scaling_factor": 1.0},
    "rope_parameters": {
        FULL: {"rope_type": "default", "rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    },
}

FAMILY = Family(
    architecture="LagunaForCausalLM",
    model_type="laguna",
    defaults=DEFAULTS,
    names=WeightNames(
        output_gate="self_attn.g_proj.weight",
        experts=ExpertNames(router_bias="mlp.experts.e_score_correction_bias", shared="mlp.shared_expert."),
    ),
    read_layers=read_layers,
)
