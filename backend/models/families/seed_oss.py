"""Seed-OSS: Llama with biases on q, k and v, and a switch of their own for the output."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Biases by `attention_bias`, `attention_out_bias` and `mlp_bias`."""
    attention = replace(
        read_attention(reader),
        qkv_bias=reader.flag("attention_bias"),
        o_bias=reader.flag("attention_out_bias"),
    )
    return same_layers(reader, attention, read_dense(reader, has_bias=reader.flag("mlp_bias")))


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 155_136,
    "intermediate_size": 27_648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524_288,
    "attention_bias": True,
}

FAMILY = Family(
    architecture="SeedOssForCausalLM", model_type="seed_oss", defaults=DEFAULTS, read_layers=read_layers
)
