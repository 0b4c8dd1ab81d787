"""Arcee (AFM): Llama whose feed-forward block is relu² without a gate."""

from __future__ import annotations

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_plain, same_layers, with_biases


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Attention has biases by `attention_bias`, the feed-forward block by `mlp_bias`."""
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    return same_layers(reader, attention, read_plain(reader, "relu2", has_bias=reader.flag("mlp_bias")))


DEFAULTS = {
    **llama.DEFAULTS,
    "hidden_size": 2560,
    "intermediate_size": 18_432,
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}

FAMILY = Family(
    architecture="ArceeForCausalLM", model_type="arcee", defaults=DEFAULTS, read_layers=read_layers
)
