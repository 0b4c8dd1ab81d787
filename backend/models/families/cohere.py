"""Cohere Command R: LayerNorm, attention and feed-forward in parallel, neighbours rotated, scaled logits."""

from __future__ import annotations

from dataclasses import replace

from backend.config import AttentionSpec, LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, with_biases
from backend.models.names import WeightNames
from backend.models.rope_config import read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """`use_qk_norm` (Command R+) normalises each head with weights of its own."""
    attention = read_turned(reader)
    if reader.flag("use_qk_norm"):
        attention = replace(attention, qk_norm="layer")
    layers = same_layers(reader, attention, read_dense(reader))
    return tuple(replace(layer, is_parallel=True) for layer in layers)


def read_turned(reader: ConfigReader) -> AttentionSpec:
    """Attention with its rotation and, by `attention_bias`, biases."""
    rope = replace(read_rope(reader), is_interleaved=True)
    return with_biases(read_attention(reader, rope), reader.flag("attention_bias"))


def read_scalars(reader: ConfigReader) -> Scalars:
    """Logits times `logit_scale`."""
    return Scalars(logits=reader.positive_number("logit_scale"))


NAMES = WeightNames(mlp_norm=None)

DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 256_000,
    "hidden_size": 8192,
    "intermediate_size": 22_528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "logit_scale": 0.0625,
    "tie_word_embeddings": True,
}

FAMILY = Family(
    architecture="CohereForCausalLM",
    model_type="cohere",
    defaults=DEFAULTS,
    names=NAMES,
    norm="layer",
    eps_key="layer_norm_eps",
    read_layers=read_layers,
    read_scalars=read_scalars,
)
