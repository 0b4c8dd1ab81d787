"""Nemotron-4: LayerNorm by 1 + w, relu² without a gate, and half of each head rotated (arXiv:2402.16819)."""

from __future__ import annotations

from backend.config import LayerSpec, Scalars
from backend.models.config_reader import ConfigReader
from backend.models.families import arcee
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_plain, same_layers, with_biases
from backend.models.rope_config import read_rope


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Arcee's, with `partial_rotary_factor`."""
    attention = read_attention(reader, read_rope(reader, can_be_partial=True))
    attention = with_biases(attention, reader.flag("attention_bias"))
    return same_layers(reader, attention, read_plain(reader, "relu2", has_bias=reader.flag("mlp_bias")))


DEFAULTS = {
    **arcee.DEFAULTS,
    "vocab_size": 256_000,
    "hidden_size": 6144,
    "intermediate_size": 24_576,
    "num_attention_heads": 48,
    "partial_rotary_factor": 0.5,
    "norm_eps": 1e-5,
}

FAMILY = Family(
    architecture="NemotronForCausalLM",
    model_type="nemotron",
    defaults=DEFAULTS,
    norm="biased_layer",
    eps_key="norm_eps",
    read_layers=read_layers,
    read_scalars=lambda reader: Scalars(norm_offset=1.0),
)
