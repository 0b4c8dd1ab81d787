"""EXAONE 4: norms after sublayers, QK-norm, and no rotation in layers without a window (arXiv:2507.11407)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama, olmo2
from backend.models.families.family import Family
from backend.models.layer_specs import num_layers, read_attention, typed_layers, windowed


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Without `sliding_window` all layers are rotated."""
    attention = replace(read_attention(reader), qk_norm="head")
    sliding = windowed(reader, attention)
    if sliding.window is None:
        return typed_layers(reader, attention, attention, lambda layer: False)
    full = replace(attention, rope=None)
    return typed_layers(reader, full, sliding, _pattern(reader))


def _pattern(reader: ConfigReader) -> Callable[[int], bool]:
    """Which layers slide, by `sliding_window_pattern`: every how many do not, or letters such as LLLG."""
    found = reader.raw.get("sliding_window_pattern")
    if isinstance(found, str):
        if not found or set(found) - {"L", "G"}:
            raise reader.error("sliding_window_pattern", found, "letters L and G, or a number")
        last = num_layers(reader) - 1
        return lambda layer: layer != last and found[layer % len(found)] == "L"
    every = reader.positive("sliding_window_pattern")
    return lambda layer: (layer + 1) % every != 0


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 102_400,
    "intermediate_size": 16_384,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
}

FAMILY = Family(
    architecture="Exaone4ForCausalLM",
    model_type="exaone4",
    defaults=DEFAULTS,
    names=olmo2.NAMES,
    read_layers=read_layers,
)
