"""Hunyuan, dense: Llama with QK-norm after the rotation."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, RopeConfig
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases
from backend.models.names import WeightNames
from backend.models.rope_config import read_rope, rope_section


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """All layers alike."""
    attention = with_biases(read_attention(reader, _read_rope(reader)), reader.flag("attention_bias"))
    return same_layers(reader, replace(attention, qk_norm="rotated_head"), read_dense(reader))


def _read_rope(reader: ConfigReader) -> RopeConfig:
    """Published files call their rotation dynamic, but its `alpha` is fixed: a larger base."""
    found = rope_section(reader)
    if not found.get("alpha") or found.get("rope_type", found.get("type")) != "dynamic":
        return read_rope(reader)
    section = {name: value for name, value in found.items() if name not in ("rope_type", "type")}
    rope = read_rope(ConfigReader(reader.path, {**reader.raw, "rope_scaling": section}))
    size = read_attention(reader, rope).head_dim
    if size == 2:
        raise reader.error("head_dim", size, "more than 2 with 'alpha'")
    factor = ConfigReader(reader.path, found).positive_number("alpha") ** (size / (size - 2))
    return replace(rope, theta=rope.theta * factor)


DEFAULTS = {**llama.DEFAULTS, "vocab_size": 290_943, "rms_norm_eps": 1e-5}

FAMILY = Family(
    architecture="HunYuanDenseV1ForCausalLM",
    model_type="hunyuan_v1_dense",
    defaults=DEFAULTS,
    names=WeightNames(
        query_norm="self_attn.query_layernorm.weight", key_norm="self_attn.key_layernorm.weight"
    ),
    read_layers=read_layers,
)
