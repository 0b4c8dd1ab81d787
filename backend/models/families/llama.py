"""Llama 2 and 3: full attention, RMSNorm, SwiGLU; the family that the others vary (arXiv:2407.21783)."""

from __future__ import annotations

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Attention has biases by `attention_bias`, the feed-forward block by `mlp_bias`."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    return same_layers(reader, attention, read_dense(reader, has_bias=reader.flag("mlp_bias")))


DEFAULTS = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
}

FAMILY = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    defaults=DEFAULTS,
    read_layers=read_layers,
    splits_heads=True,
)
