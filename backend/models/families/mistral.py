"""Mistral: Llama without biases, with the same sliding window in every layer (arXiv:2310.06825)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """`sliding_window` in every layer; null: full attention."""
    attention = replace(read_attention(reader), window=reader.optional_positive("sliding_window"))
    return same_layers(reader, attention, read_dense(reader))


DEFAULTS = {
    **llama.DEFAULTS,
    "intermediate_size": 14_336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}

FAMILY = Family(
    architecture="MistralForCausalLM",
    model_type="mistral",
    defaults=DEFAULTS,
    read_layers=read_layers,
    splits_heads=True,
)
