"""Cohere Command R7B and A: Command R with windows in three of four layers, and rotation only in these."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import cohere
from backend.models.families.family import Family
from backend.models.layer_specs import check_rotated, typed_layers, windowed


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """By `layer_types`, else in all but every `sliding_window_pattern`-th layer."""
    attention, every = cohere.read_turned(reader), reader.positive("sliding_window_pattern")
    sliding, full = windowed(reader, attention), replace(attention, rope=None)
    if sliding.window is None:
        sliding = full
    layers = typed_layers(reader, full, sliding, lambda layer: bool((layer + 1) % every))
    return tuple(replace(layer, is_parallel=True) for layer in check_rotated(reader, layers))


DEFAULTS = {
    **cohere.DEFAULTS,
    "rope_theta": 10_000.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}

FAMILY = Family(
    architecture="Cohere2ForCausalLM",
    model_type="cohere2",
    defaults=DEFAULTS,
    names=cohere.NAMES,
    norm="layer",
    eps_key="layer_norm_eps",
    read_layers=read_layers,
    read_scalars=cohere.read_scalars,
)
