"""Qwen3: Qwen2's windows without its biases, and RMSNorm on every query and key head (arXiv:2505.09388)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import qwen2
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, with_biases


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Biases on all four projections, or on none, as `attention_bias` says."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    return qwen2.windowed_layers(reader, replace(attention, qk_norm="head"))


FAMILY = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    defaults={**qwen2.DEFAULTS, "head_dim": 128},
    read_layers=read_layers,
    splits_heads=True,
)
