"""Mistral: Llama without biases, with the same sliding window in every layer (arXiv:2310.06825)."""

from __future__ import annotations

from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family, Windows, no_biases


def read_windows(reader: ConfigReader, num_layers: int) -> Windows:
    """`sliding_window` in every layer; null: full attention."""
    return (reader.optional_positive("sliding_window"),) * num_layers


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
    read_biases=no_biases,
    read_windows=read_windows,
)
