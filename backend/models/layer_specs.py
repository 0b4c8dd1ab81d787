"""Parts of layers as most families write them in config.json. No torch."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, DenseSpec, LayerSpec, MoEConfig
from backend.models.config_reader import ConfigReader
from backend.models.rope_config import read_rope


def num_layers(reader: ConfigReader) -> int:
    """How many layers there are. Raises CheckpointError, as all functions here do."""
    return reader.positive("num_hidden_layers")


def read_attention(reader: ConfigReader) -> AttentionSpec:
    """Heads and rotary embedding; without windows, biases and norms."""
    num_heads = reader.positive("num_attention_heads")
    num_kv_heads = reader.positive("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise reader.error(
            "num_key_value_heads", num_kv_heads, f"a divisor of num_attention_heads={num_heads}"
        )
    head_dim = reader.positive("head_dim", reader.positive("hidden_size") // num_heads)
    return AttentionSpec(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, rope=read_rope(reader)
    )


def with_biases(attention: AttentionSpec, has_bias: bool) -> AttentionSpec:
    """All four projections have a bias, or none of them."""
    return replace(attention, qkv_bias=has_bias, o_bias=has_bias)


def read_dense(reader: ConfigReader, *, has_bias: bool = False) -> DenseSpec:
    """A gated feed-forward block."""
    return DenseSpec(intermediate_size=reader.positive("intermediate_size"), has_bias=has_bias)


def same_layers(
    reader: ConfigReader, attention: AttentionSpec, block: DenseSpec | MoEConfig
) -> tuple[LayerSpec, ...]:
    """All layers alike."""
    return (LayerSpec(attention, block),) * num_layers(reader)
