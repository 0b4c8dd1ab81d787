"""Llama 2 and 3: full attention, RMSNorm, SwiGLU; the family that the others vary (arXiv:2407.21783)."""

from __future__ import annotations

from backend.models.config_reader import ConfigReader
from backend.models.families.family import Biases, Family


def read_biases(reader: ConfigReader) -> Biases:
    """Attention by `attention_bias`, the feed-forward block by `mlp_bias`."""
    attention = reader.flag("attention_bias")
    return Biases(qkv=attention, out=attention, mlp=reader.flag("mlp_bias"))


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
    architecture="LlamaForCausalLM", model_type="llama", defaults=DEFAULTS, read_biases=read_biases
)
