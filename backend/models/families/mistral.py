"""Mistral: Llama with the same sliding window in every layer (arXiv:2310.06825)."""

from __future__ import annotations

from backend.models.config_reader import ConfigReader
from backend.models.families.family import Family, Windows


def read_windows(reader: ConfigReader, num_layers: int) -> Windows:
    """`sliding_window` in every layer; null or absent: full attention."""
    return (reader.optional_positive("sliding_window"),) * num_layers


FAMILY = Family(architecture="MistralForCausalLM", read_windows=read_windows)
