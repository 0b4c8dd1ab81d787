"""Ministral 3: Mistral with YaRN, whose queries grow by position (as in Llama 4)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, QueryGrowth
from backend.models.config_reader import ConfigReader
from backend.models.families import mistral
from backend.models.families.family import Family
from backend.models.layer_specs import read_attention, read_dense, same_layers, windowed
from backend.models.rope_config import rope_section


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Queries grow with `llama_4_scaling_beta` from the length on for which positions were trained."""
    attention = windowed(reader, read_attention(reader))
    section = ConfigReader(reader.path, {**reader.raw, **rope_section(reader)})
    if section.raw.get("llama_4_scaling_beta") is not None:
        beta, scaled = (
            section.number("llama_4_scaling_beta"),
            attention.rope and attention.rope.original_max_tokens,
        )
        growth = QueryGrowth(beta, scaled or section.positive("original_max_position_embeddings"))
        attention = replace(attention, query_growth=growth)
    return same_layers(reader, attention, read_dense(reader))


DEFAULTS = {
    **mistral.DEFAULTS,
    "vocab_size": 131_072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "rope_theta": 1_000_000.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 16_384,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}

FAMILY = Family(
    architecture="Ministral3ForCausalLM", model_type="ministral3", defaults=DEFAULTS, read_layers=read_layers
)
