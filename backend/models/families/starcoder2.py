"""StarCoder2: LayerNorm, biases everywhere, gelu without a gate, and a sliding window (arXiv:2402.19173)."""

from __future__ import annotations

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_plain, same_layers, windowed, with_biases
from backend.models.names import WeightNames


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """`sliding_window` in every layer; null: full attention."""
    has_bias = reader.flag("use_bias")
    attention = with_biases(windowed(reader, read_attention(reader)), has_bias)
    return same_layers(reader, attention, read_plain(reader, "plain_gelu_tanh", has_bias=has_bias))


DEFAULTS = {
    "vocab_size": 49_152,
    "hidden_size": 3072,
    "intermediate_size": 12_288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "rope_theta": 10_000.0,
    "use_bias": True,
    "tie_word_embeddings": True,
}

FAMILY = Family(
    architecture="Starcoder2ForCausalLM",
    model_type="starcoder2",
    defaults=DEFAULTS,
    names=WeightNames(up="mlp.c_fc.weight", down="mlp.c_proj.weight"),
    norm="biased_layer",
    eps_key="norm_epsilon",
    read_layers=read_layers,
)
