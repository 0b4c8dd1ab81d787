"""OLMo 2: norms after sublayers, not before, and QK-norm over all heads at once (arXiv:2501.00656)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LayerSpec, RopeConfig, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases
from backend.models.names import WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """All layers alike."""
    return same_layers(reader, read_normed(reader), read_dense(reader))


def read_normed(reader: ConfigReader, rope: RopeConfig | None = None) -> AttentionSpec:
    """Attention with QK-norm over all heads."""
    attention = with_biases(read_attention(reader, rope), reader.flag("attention_bias"))
    return replace(attention, qk_norm="all")


NAMES = WeightNames(
    attention_norm=None,
    attention_out_norm="post_attention_layernorm.weight",
    mlp_norm=None,
    mlp_out_norm="post_feedforward_layernorm.weight",
)

DEFAULTS = {**llama.DEFAULTS, "vocab_size": 50_304, "rms_norm_eps": 1e-5}

FAMILY = Family(
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    defaults=DEFAULTS,
    names=NAMES,
    read_layers=read_layers,
    read_scalars=lambda reader: Scalars(exact_norms=True),
)
