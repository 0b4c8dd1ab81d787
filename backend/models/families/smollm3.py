"""SmolLM3: Llama whose every fourth layer has no rotary embedding."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec
from backend.models.config_reader import ConfigReader
from backend.models.families import llama
from backend.models.families.family import Family
from backend.models.layer_specs import (
    num_layers,
    read_attention,
    read_dense,
    read_layer_types,
    windowed,
    with_biases,
)
from backend.models.rope_config import SLIDING


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """`no_rope_layers` has a 0 for each layer without rotation; `layer_types` says which have a window."""
    count = num_layers(reader)
    has_rope = read_rotated(reader, count)
    if not any(has_rope):
        raise reader.unsupported("no_rope_layers", has_rope, "models with rotation in some layer")
    attention = with_biases(read_attention(reader), reader.flag("attention_bias"))
    dense = read_dense(reader, has_bias=reader.flag("mlp_bias"))
    is_sliding = [reader.flag("use_sliding_window") and not rope for rope in has_rope]
    if (types := read_layer_types(reader)) is not None:
        is_sliding = [name == SLIDING for name in types]
    specs = (attention if rope else replace(attention, rope=None) for rope in has_rope)
    return tuple(
        LayerSpec(windowed(reader, spec) if slides else spec, dense)
        for spec, slides in zip(specs, is_sliding, strict=True)
    )


def read_rotated(reader: ConfigReader, count: int) -> list[bool]:
    """Whether each layer has a rotary embedding."""
    found = reader.raw.get("no_rope_layers")
    if found is None:
        interval = reader.positive("no_rope_layer_interval")
        return [(layer + 1) % interval != 0 for layer in range(count)]
    if not isinstance(found, list) or len(found) != count or any(each not in (0, 1) for each in found):
        raise reader.error("no_rope_layers", found, f"a list of {count} numbers, each 0 or 1")
    return [flag == 1 for flag in found]


DEFAULTS = {
    **llama.DEFAULTS,
    "vocab_size": 128_256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rope_theta": 2_000_000.0,
    "no_rope_layer_interval": 4,
    "tie_word_embeddings": True,
}

FAMILY = Family(
    architecture="SmolLM3ForCausalLM", model_type="smollm3", defaults=DEFAULTS, read_layers=read_layers
)
