"""GLM-4-0414: norms around sublayers, and neighbouring dimensions of half of each head rotated."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers
from backend.models.names import WeightNames
from backend.models.rope_config import read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Biases on q, k and v by `attention_bias`."""
    rope = replace(read_rope(reader, can_be_partial=True), is_interleaved=True)
    attention = replace(read_attention(reader, rope), qkv_bias=reader.flag("attention_bias"))
    return same_layers(reader, attention, read_dense(reader))


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 151_552,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1.5625e-07,
    "attention_bias": True,
}

FAMILY = Family(
    architecture="Glm4ForCausalLM",
    model_type="glm4",
    defaults=DEFAULTS,
    names=WeightNames(
        attention_out_norm="post_self_attn_layernorm.weight",
        mlp_out_norm="post_mlp_layernorm.weight",
        gate_up="mlp.gate_up_proj.weight",
    ),
    read_layers=read_layers,
    overflows_float16=True,
)
