"""Gemma 4: heads of two sizes, norms of values, layers that share keys and values, and layers' embeddings."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LayerSpec, RopeConfig, Scalars
from backend.models import layer_specs
from backend.models.config_reader import ConfigReader
from backend.models.families import gemma2
from backend.models.families.family import Family
from backend.models.rope_config import FULL, SLIDING, read_ropes


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Full attention in every sixth layer unless `layer_types` says where, and in the last layer always."""
    for key, value in (("use_bidirectional_attention", "all"), ("enable_moe_block", True)):
        if reader.raw.get(key) == value:
            raise reader.unsupported(key, value, "other models")
    layer_specs.read_activation(reader, only=("gelu_tanh",))
    pattern = [FULL if n % 6 == 5 else SLIDING for n in range(layer_specs.num_layers(reader))]
    types = [*(layer_specs.read_layer_types(reader) or pattern)[:-1], FULL]
    ropes = read_ropes(reader, local_theta=10_000.0)
    own = {"head_dim": reader.positive("global_head_dim", 512)}
    if reader.flag("attention_k_eq_v") and (heads := reader.optional_positive("num_global_key_value_heads")):
        own["num_key_value_heads"] = heads
    sections = layer_specs.read_sections(reader, [own if name == FULL else {} for name in types])
    attentions = [read_values(each, ropes[name], name) for each, name in zip(sections, types, strict=True)]
    dense, inputs = layer_specs.read_dense(reader), layer_specs.read_inputs(reader)
    factor = 2 if reader.flag("use_double_wide_mlp") else 1
    wide = replace(dense, intermediate_size=factor * dense.intermediate_size)
    return tuple(
        LayerSpec(attention, dense if attention.kv_source is None else wide, inputs)
        for attention in layer_specs.with_kv_sources(reader, attentions, types)
    )


def read_values(reader: ConfigReader, rope: RopeConfig, layer_type: str) -> AttentionSpec:
    """Scores are not scaled; values of full attention may be keys."""
    attention = layer_specs.read_attention(reader, rope)
    attention = layer_specs.with_biases(attention, reader.flag("attention_bias"))
    attention = replace(attention, scale=1.0, qk_norm="head", value_norm=True)
    if layer_type == FULL:
        return replace(attention, value_is_key=reader.flag("attention_k_eq_v"))
    return layer_specs.windowed(reader, attention)


def read_scalars(reader: ConfigReader) -> Scalars:
    """Gemma 2's, but norms are by their weights."""
    return replace(gemma2.read_scalars(reader), norm_offset=0.0)


DEFAULTS = {
    **gemma2.DEFAULTS,
    "vocab_size": 262_144,
    "num_hidden_layers": 30,
    "max_position_embeddings": 131_072,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
    },
    "sliding_window": 512,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}

FAMILY = Family(
    architecture="Gemma4ForCausalLM",
    model_type="gemma4_text",
    defaults=DEFAULTS,
    names=replace(gemma2.NAMES, layer_scale="layer_scalar"),
    read_layers=read_layers,
    read_scalars=read_scalars,
)
