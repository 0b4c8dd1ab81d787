"""Gemma 3: Gemma 2 with QK-norm, and rotary embeddings of their own for sliding layers (arXiv:2503.19786)."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import gemma2
from backend.models.families.family import Family
from backend.models.layer_specs import typed_layers, windowed
from backend.models.rope_config import FULL, SLIDING, read_ropes


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Sliding windows by `layer_types`, else in all but every `sliding_window_pattern`-th layer."""
    every = reader.positive("sliding_window_pattern")
    ropes = read_ropes(reader, local_theta=10_000.0)
    full = replace(gemma2.read_scores(reader, ropes[FULL]), qk_norm="head")
    sliding = windowed(reader, replace(full, rope=ropes[SLIDING]))
    return typed_layers(reader, full, sliding, lambda layer: bool((layer + 1) % every))


DEFAULTS = {
    **gemma2.DEFAULTS,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0,
    "sliding_window_pattern": 6,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}

FAMILY = Family(
    architecture="Gemma3ForCausalLM",
    model_type="gemma3_text",
    defaults=DEFAULTS,
    names=gemma2.NAMES,
    read_layers=read_layers,
    read_scalars=gemma2.read_scalars,
    overflows_float16=True,
)
