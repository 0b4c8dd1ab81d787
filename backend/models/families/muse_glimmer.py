"""Muse Glimmer: its decoder alone, for text: gated attention, and norms of embeddings and heads."""

from __future__ import annotations

from dataclasses import replace

from backend.config import LayerSpec, Scalars
from backend.models import layer_specs
from backend.models.config_reader import ConfigReader
from backend.models.families import gemma2
from backend.models.families.family import Family, nested


def read_layers(reader: ConfigReader) -> tuple[LayerSpec, ...]:
    """Full attention by `layer_types`, else in every fourth layer, counted from the last."""
    attention = layer_specs.with_biases(layer_specs.read_attention(reader), reader.flag("attention_bias"))
    scale = reader.positive_number("qk_scale_factor") * attention.head_dim**-0.5
    attention = replace(attention, qk_norm="unit", scale=scale, output_gate="sigmoid")
    rotated = read_rotated(reader)
    last = len(rotated) - 1
    layers = layer_specs.typed_layers(
        reader, attention, layer_specs.windowed(reader, attention), lambda layer: (last - layer) % 4 != 0
    )
    specs = (
        layer.attention if turns else replace(layer.attention, rope=None)
        for layer, turns in zip(layers, rotated, strict=True)
    )
    return layer_specs.check_rotated(reader, tuple(LayerSpec(spec, layers[0].feed_forward) for spec in specs))


def read_rotated(reader: ConfigReader) -> list[bool]:
    """By `layer_rope_theta`, where 0 is none; else all but every fourth layer, counted from the last."""
    count, found = layer_specs.num_layers(reader), reader.raw.get("layer_rope_theta")
    if found is None:
        return [(count - 1 - layer) % 4 != 0 for layer in range(count)]
    attention = layer_specs.read_attention(reader)
    theta = attention.rope.theta if attention.rope is not None else 0
    if not isinstance(found, list) or len(found) != count or any(own not in (0, theta) for own in found):
        raise reader.error(
            "layer_rope_theta", found, f"a list of {count} numbers, each 0 or rope_theta={theta}"
        )
    return [own != 0 for own in found]


def read_scalars(reader: ConfigReader) -> Scalars:
    """Norms by 1 + w but for the last; the cap is of the logits that are multiplied."""
    return Scalars(
        logits=reader.positive_number("output_multiplier"),
        softcap=reader.optional_positive_number("final_logit_softcapping"),
        norm_offset=1.0,
        exact_norms=True,
        final_norm_offset=0.0,
        out_norm_eps=reader.positive_number("post_norm_eps"),
        embedding_norm=True,
    )


TEXT = Family(
    architecture="MuseGlimmerTextModel",
    model_type="muse_glimmer_text",
    defaults={
        **{"vocab_size": 202_048, "hidden_size": 6656, "intermediate_size": 19_968, "num_hidden_layers": 52},
        **{"num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "sliding_window": 2048},
        **{"max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0},
        **{"qk_scale_factor": 3.87, "output_multiplier": 0.19611613513818404, "post_norm_eps": 1e-8},
        "final_logit_softcapping": 20.0,
    },
    names=gemma2.NAMES,
    read_layers=read_layers,
    read_scalars=read_scalars,
)

PARTS = ("vision_tower.", "vision_adapter.", "vision_projection.")
OTHERS = (*PARTS, *(f"model.{name}" for name in PARTS))

FAMILY = nested(
    TEXT, architecture="MuseGlimmerForConditionalGeneration", model_type="muse_glimmer", others=OTHERS
)
