"""Gemma: norms by 1 + w, scaled embeddings and GeGLU (arXiv:2403.08295)."""

from __future__ import annotations

from backend.config import LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """All layers alike."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    return same_layers(reader, attention, read_dense(reader))


def read_scalars(reader: ConfigReader) -> Scalars:
    """Embeddings times the root of their size, norms by 1 + w."""
    scale = reader.positive("hidden_size") ** 0.5
    return Scalars(embedding=scale, rounds_embedding=True, norm_offset=1.0, exact_norms=True)


DEFAULTS = {
    "vocab_size": 256_000,
    "hidden_size": 3072,
    "intermediate_size": 24_576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}

FAMILY = Family(
    architecture="GemmaForCausalLM",
    model_type="gemma",
    defaults=DEFAULTS,
    read_layers=read_layers,
    read_scalars=read_scalars,
)
