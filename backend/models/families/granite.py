"""Granite 3: Llama with four multipliers."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Scores times `attention_multiplier`."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    attention = replace(attention, scale=reader.positive_number("attention_multiplier"))
    return same_layers(reader, attention, read_dense(reader, has_bias=reader.flag("mlp_bias")))


def read_scalars(reader: ConfigReader) -> Scalars:
    """The other three."""
    return Scalars(
        embedding=reader.positive_number("embedding_multiplier"),
        residual=reader.positive_number("residual_multiplier"),
        logits=1 / reader.positive_number("logits_scaling"),
    )


DEFAULTS = {
    **llama.DEFAULTS,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "logits_scaling": 1.0,
}

FAMILY = Family(
    architecture="GraniteForCausalLM",
    model_type="granite",
    defaults=DEFAULTS,
    read_layers=read_layers,
    read_scalars=read_scalars,
)
