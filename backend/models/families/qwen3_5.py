"""Qwen3.5, 3.6 and 3.8: gated delta nets, and gated attention in every fourth layer (arXiv:2412.06464)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, DeltaSpec, LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_attention, read_dense, read_layer_types, with_biases
from backend.models.rope_config import FULL, LINEAR, read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Dense layers of both kinds."""
    dense = read_dense(reader)
    return tuple(LayerSpec(mixer, dense) for mixer in read_mixers(reader))


def read_mixers(reader: ConfigReader) -> list[AttentionSpec | DeltaSpec]:
    """Attention by `layer_types`, else in every `full_attention_interval`-th layer."""
    interval = reader.positive("full_attention_interval", 4)
    pattern = [LINEAR if (layer + 1) % interval else FULL for layer in range(num_layers(reader))]
    names = read_layer_types(reader, (LINEAR, FULL)) or pattern
    if names != pattern and reader.raw.get("full_attention_interval") is not None:
        raise reader.error("full_attention_interval", interval, "what 'layer_types' says")
    if FULL not in names or LINEAR not in names:
        raise reader.unsupported(
            "layer_types", sorted(set(names)), f"models with both {FULL!r} and {LINEAR!r}"
        )
    if reader.raw.get("attn_output_gate") not in (None, True):
        raise reader.unsupported("attn_output_gate", reader.raw["attn_output_gate"], "true")
    attention = read_attention(reader, read_rope(reader, can_be_partial=True))
    attention = with_biases(attention, reader.flag("attention_bias"))
    attention, delta = replace(attention, qk_norm="head", has_gate=True), read_delta(reader)
    return [delta if name == LINEAR else attention for name in names]


def read_delta(reader: ConfigReader) -> DeltaSpec:
    """Heads and convolution of the gated delta nets."""
    num_keys = reader.positive("linear_num_key_heads")
    num_values = reader.positive("linear_num_value_heads")
    if num_values % num_keys:
        expected = f"a multiple of linear_num_key_heads={num_keys}"
        raise reader.error("linear_num_value_heads", num_values, expected)
    return DeltaSpec(
        num_key_heads=num_keys,
        num_value_heads=num_values,
        key_head_dim=reader.positive("linear_key_head_dim"),
        value_head_dim=reader.positive("linear_value_head_dim"),
        conv_tokens=reader.positive("linear_conv_kernel_dim"),
    )


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}

FAMILY = Family(
    architecture="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    defaults=DEFAULTS,
    read_layers=read_layers,
    read_scalars=lambda reader: Scalars(norm_offset=1.0, exact_norms=True),
    others=("mtp.",),
)
