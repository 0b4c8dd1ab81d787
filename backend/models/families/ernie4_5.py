"""ERNIE 4.5, dense: Llama whose rotation pairs neighbouring dimensions."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases
from backend.models.rope_config import read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Biases everywhere, or nowhere, as `use_bias` says."""
    return same_layers(reader, read_turned(reader), read_dense(reader, has_bias=reader.flag("use_bias")))


def read_turned(reader: ConfigReader) -> AttentionSpec:
    """Attention with its rotation."""
    rope = replace(read_rope(reader), is_interleaved=True)
    return with_biases(read_attention(reader, rope), reader.flag("use_bias"))


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 103_424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}

FAMILY = Family(
    architecture="Ernie4_5ForCausalLM", model_type="ernie4_5", defaults=DEFAULTS, read_layers=read_layers
)
