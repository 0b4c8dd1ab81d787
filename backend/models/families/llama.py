"""Llama 2 and 3: full attention, RMSNorm, SwiGLU; the family that the others vary (arXiv:2407.21783)."""

from __future__ import annotations

from backend.models.config_reader import ConfigReader
from backend.models.families.family import Biases, Family


def read_biases(reader: ConfigReader) -> Biases:
    """Attention by `attention_bias`, the feed-forward block by `mlp_bias`."""
    attention = reader.flag("attention_bias")
    return Biases(qkv=attention, out=attention, mlp=reader.flag("mlp_bias"))


FAMILY = Family(architecture="LlamaForCausalLM", read_biases=read_biases)
