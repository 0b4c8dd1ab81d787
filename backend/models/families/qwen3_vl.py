"""Qwen3-VL: its decoder alone, for text: Qwen3, as all parts of a text's positions are equal."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import qwen3
from backend.models.families.family import Family, nested
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Qwen3's without windows. `mrope_section` tells positions of images apart, and is not read."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    return same_layers(reader, replace(attention, qk_norm="head"), read_dense(reader))


TEXT = Family(
    architecture="Qwen3VLTextModel",
    model_type="qwen3_vl_text",
    defaults={**qwen3.FAMILY.defaults, "max_position_embeddings": 128_000, "rope_theta": 500_000.0},
    read_layers=read_layers,
)

OTHERS = ("model.visual.", "visual.")

FAMILY = nested(TEXT, architecture="Qwen3VLForConditionalGeneration", model_type="qwen3_vl", others=OTHERS)
