"""Apertus: Llama with QK-norm, whose feed-forward block is xIELU without a gate (arXiv:2509.14233)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_plain, same_layers, with_biases
from backend.models.names import WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """All layers alike; the numbers of their activations are in the files."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    return same_layers(reader, replace(attention, qk_norm="head"), read_plain(reader, "xielu"))


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 131_072,
    "intermediate_size": 14_336,
    "hidden_act": "xielu",
    "max_position_embeddings": 65_536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 12_000_000.0,
    "rope_parameters": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
}

FAMILY = Family(
    architecture="ApertusForCausalLM",
    model_type="apertus",
    defaults=DEFAULTS,
    names=WeightNames(attention_norm="attention_layernorm.weight", mlp_norm="feedforward_layernorm.weight"),
    read_layers=read_layers,
)
