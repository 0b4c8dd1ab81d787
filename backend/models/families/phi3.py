"""Phi-3 and Phi-4: Llama with stacked projections, partial rotation and LongRoPE (arXiv:2404.14219)."""

from __future__ import annotations

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, windowed
from backend.models.names import WeightNames
from backend.models.rope_config import read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """`sliding_window` in every layer; null: full attention."""
    rope = read_rope(reader, can_be_partial=True)
    if rope.rope_type not in ("default", "longrope"):
        raise reader.unsupported("rope_type", rope.rope_type, "'default' and 'longrope'")
    attention = read_attention(reader, rope)
    return same_layers(reader, windowed(reader, attention), read_dense(reader))


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}

FAMILY = Family(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    defaults=DEFAULTS,
    names=WeightNames(qkv="self_attn.qkv_proj.weight", gate_up="mlp.gate_up_proj.weight"),
    read_layers=read_layers,
)
