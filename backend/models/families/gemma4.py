"""Gemma 4: heads of two sizes, norms of values, layers that share keys and values, and layers' embeddings."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, DenseSpec, LayerSpec, MoEConfig, RopeConfig
from backend.models import layer_specs
from backend.models.config_reader import ConfigReader
from backend.models.expert_specs import beside_experts
from backend.models.families import gemma2
from backend.models.families.family import Family
from backend.models.names import StackedNames
from backend.models.rope_config import FULL, SLIDING, read_ropes


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Full attention in every sixth layer unless `layer_types` says where, and in the last layer always."""
    if reader.raw.get("use_bidirectional_attention") == "all":
        raise reader.unsupported("use_bidirectional_attention", "all", "null and 'vision'")
    layer_specs.read_activation(reader, only=("gelu_tanh",))
    pattern = [FULL if n % 6 == 5 else SLIDING for n in range(layer_specs.num_layers(reader))]
    types = [*(layer_specs.read_layer_types(reader) or pattern)[:-1], FULL]
    ropes = read_ropes(reader, local_theta=10_000.0, can_be_proportional=True)
    own = {"head_dim": reader.positive("global_head_dim", 512)}
    if reader.flag("attention_k_eq_v") and (heads := reader.optional_positive("num_global_key_value_heads")):
        own["num_key_value_heads"] = heads
    sections = layer_specs.read_sections(reader, [own if name == FULL else {} for name in types])
    attentions = [read_values(each, ropes[name], name) for each, name in zip(sections, types, strict=True)]
    inputs = layer_specs.read_inputs(reader)
    return tuple(
        LayerSpec(each, read_block(reader, is_shared=each.kv_source is not None), inputs)
        for each in layer_specs.with_kv_sources(reader, attentions, types)
    )


def read_block(reader: ConfigReader, *, is_shared: bool) -> DenseSpec | MoEConfig:
    """`use_double_wide_mlp` is for layers that share keys and values."""
    dense = layer_specs.read_dense(reader)
    if is_shared and reader.flag("use_double_wide_mlp"):
        dense = replace(dense, intermediate_size=2 * dense.intermediate_size)
    return beside_experts(reader, dense) if reader.flag("enable_moe_block") else dense


def read_values(reader: ConfigReader, rope: RopeConfig, layer_type: str) -> AttentionSpec:
    """Scores are not scaled; values of full attention may be keys."""
    attention = layer_specs.read_attention(reader, rope)
    attention = layer_specs.with_biases(attention, reader.flag("attention_bias"))
    attention = replace(attention, scale=1.0, qk_norm="head", value_norm=True)
    keyed = replace(attention, value_is_key=reader.flag("attention_k_eq_v"))
    return keyed if layer_type == FULL else layer_specs.windowed(reader, attention)


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
    "final_logit_softcapping": None,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}

EXPERTS = StackedNames(
    "router.proj.weight", "experts.gate_up_proj", "experts.down_proj", has_gates_first=True
)

FAMILY = Family(
    architecture="Gemma4ForCausalLM",
    model_type="gemma4_text",
    defaults=DEFAULTS,
    names=replace(gemma2.NAMES, layer_scale="layer_scalar", experts=EXPERTS),
    read_layers=read_layers,
    read_scalars=lambda reader: replace(gemma2.read_scalars(reader), norm_offset=0.0),
    overflows_float16=True,
)
