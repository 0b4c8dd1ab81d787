"""Gemma 2: Gemma with norms around sublayers, a window in every other layer, and caps (arXiv:2408.00118)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LayerSpec, RopeConfig, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import gemma
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, typed_layers, windowed, with_biases
from backend.models.names import WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Sliding windows by `layer_types`, else in every other layer from the first on."""
    attention = read_scores(reader)
    return typed_layers(reader, attention, windowed(reader, attention), lambda layer: layer % 2 == 0)


def read_scores(reader: ConfigReader, rope: RopeConfig | None = None) -> AttentionSpec:
    """Attention with its own scale, and the cap of scores where there is one."""
    attention = with_biases(read_attention(reader, rope), reader.flag("attention_bias"))
    scale = reader.positive_number("query_pre_attn_scalar") ** -0.5
    softcap = reader.optional_positive_number("attn_logit_softcapping")
    return replace(attention, scale=scale, softcap=softcap)


def read_scalars(reader: ConfigReader) -> Scalars:
    """Gemma's, and the cap of logits where there is one."""
    softcap = reader.optional_positive_number("final_logit_softcapping")
    return replace(gemma.read_scalars(reader), softcap=softcap)


NAMES = WeightNames(
    attention_out_norm="post_attention_layernorm.weight",
    mlp_norm="pre_feedforward_layernorm.weight",
    mlp_out_norm="post_feedforward_layernorm.weight",
)

DEFAULTS = {
    **gemma.DEFAULTS,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}

FAMILY = Family(
    architecture="Gemma2ForCausalLM",
    model_type="gemma2",
    defaults=DEFAULTS,
    names=NAMES,
    read_layers=read_layers,
    read_scalars=read_scalars,
    overflows_float16=True,
)
