"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and optional sliding windows (arXiv:2407.10671)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_attention, read_dense, read_layer_types
from backend.models.rope_config import SLIDING


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Biases on q, k and v always; the architecture has no key for it."""
    return windowed_layers(reader, replace(read_attention(reader), qkv_bias=True))


def windowed_layers(reader: ConfigReader, attention: AttentionSpec) -> tuple[LayerSpec, ...]:
    """Dense layers, with each one's window."""
    dense = read_dense(reader)
    return tuple(LayerSpec(replace(attention, window=window), dense) for window in _read_windows(reader))


def _read_windows(reader: ConfigReader) -> tuple[int | None, ...]:
    """Only with `use_sliding_window`: by `layer_types`, else from layer `max_window_layers` on."""
    count = num_layers(reader)
    window = reader.optional_positive("sliding_window")
    if window is None or not reader.flag("use_sliding_window"):
        return (None,) * count
    layer_types = read_layer_types(reader)
    if layer_types is None:
        first = int(reader.number("max_window_layers"))
        return tuple(window if layer >= first else None for layer in range(count))
    return tuple(window if name == SLIDING else None for name in layer_types)


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}

FAMILY = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    defaults=DEFAULTS,
    read_layers=read_layers,
    splits_heads=True,
)
