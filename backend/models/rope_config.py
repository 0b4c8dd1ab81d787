"""Reads how a checkpoint rotates positions, into one RopeConfig. No torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from backend.config import AttentionSpec, LayerSpec, RopeConfig
from backend.models.config_reader import ConfigReader

SLIDING, FULL = LAYER_TYPES = ("sliding_attention", "full_attention")
LINEAR = "linear_attention"


def read_rope(reader: ConfigReader, *, can_be_partial: bool = False) -> RopeConfig:
    """From transformers 4's `rope_scaling` and `rope_theta`, else from transformers 5's `rope_parameters`.

    `can_be_partial`: the family rotates `partial_rotary_factor` of each head; others refuse that key.
    """
    found = rope_section(reader)
    if any(isinstance(value, dict) for value in found.values()):
        raise reader.unsupported("rope_parameters", sorted(found), "the same for all layers")
    partial = found.get("partial_rotary_factor", reader.raw.get("partial_rotary_factor"))
    if partial not in (None, 1) and not can_be_partial:
        raise reader.unsupported("partial_rotary_factor", partial, "1.0")
    return _read_partial(reader, {**found, "partial_rotary_factor": partial})


def read_ropes(
    reader: ConfigReader,
    local_theta: float,
    *,
    can_be_proportional: bool = False,
    can_be_partial: bool = False,
) -> dict[str, RopeConfig]:
    """One for each of LAYER_TYPES, as Gemma 3 has them; the other arguments are those of `read_rope`.

    transformers 5 nests them by type. Before, only full attention had a scaling, and sliding layers had
    `rope_local_base_freq`, or else `local_theta`.
    """
    found = rope_section(reader)
    nested: dict[str, Any] = {
        FULL: found,
        SLIDING: {"rope_theta": reader.positive_number("rope_local_base_freq", local_theta)},
    }
    if any(isinstance(value, dict) for value in found.values()):
        nested = {name: found.get(name) for name in LAYER_TYPES}
    ropes = {}
    for name, section in nested.items():
        if not isinstance(section, dict):
            raise reader.error("rope_parameters", sorted(found), f"an object for {name!r}")
        is_proportional = can_be_proportional and _type(section) == "proportional"
        read = _read_partial if can_be_partial else _read
        ropes[name] = (_read_proportional if is_proportional else read)(reader, section)
    return ropes


def for_context(layer: LayerSpec, num_tokens: int) -> LayerSpec:
    """With LongRoPE's long factors if the context that is served exceeds the original one, else the short.

    All sequences of an engine have the same: keys in pages that they share do not change while one grows.
    """
    spec = layer.mixer
    if not isinstance(spec, AttentionSpec) or spec.rope is None or not spec.rope.long_factors:
        return layer
    is_long = num_tokens > spec.rope.original_max_tokens
    factors = spec.rope.long_factors if is_long else spec.rope.factors
    return replace(layer, mixer=replace(spec, rope=replace(spec.rope, factors=factors, long_factors=())))


def score_factor(reader: ConfigReader, rope: RopeConfig) -> float:
    """What latent attention multiplies scores by: the square of YaRN's temperature by `mscale_all_dim`."""
    weight = _weight(ConfigReader(reader.path, rope_section(reader)), "mscale_all_dim")
    return _temperature(weight, rope.factor) ** 2


def rope_section(reader: ConfigReader) -> dict[str, Any]:
    """What config.json says of rotation. transformers 4's spelling first, as some families default to 5's."""
    key = "rope_scaling" if reader.raw.get("rope_scaling") else "rope_parameters"
    found = reader.raw.get(key) or {}
    if not isinstance(found, dict):
        raise reader.error(key, found, "an object")
    return found


def _type(found: dict[str, Any]) -> object:
    """`su` is what LongRoPE was called; `mrope` is the default for texts, where a token has one position."""
    name = found.get("rope_type", found.get("type", "default"))
    if name == "mrope" and isinstance(found.get("mrope_section"), list):
        return "default"
    return "longrope" if name == "su" else name


def _read_partial(reader: ConfigReader, found: dict[str, Any]) -> RopeConfig:
    share = ConfigReader(reader.path, found).positive_number("partial_rotary_factor", 1.0)
    return replace(_read(reader, found), rotated=share)


def _read_proportional(reader: ConfigReader, found: dict[str, Any]) -> RopeConfig:
    section = ConfigReader(reader.path, found)
    theta = section.positive_number("rope_theta", reader.positive_number("rope_theta"))
    share = section.positive_number("partial_rotary_factor", 1.0)
    return RopeConfig("proportional", theta, section.positive_number("factor", 1.0), rotated=share)


def _read(reader: ConfigReader, found: dict[str, Any]) -> RopeConfig:
    section = ConfigReader(reader.path, found)
    theta = section.positive_number("rope_theta", reader.positive_number("rope_theta"))
    rope_type = _type(found)
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type not in ("linear", "llama3", "yarn", "longrope"):
        known = "'default', 'linear', 'llama3', 'yarn' and 'longrope'"
        raise reader.unsupported("rope_type", rope_type, known)
    maximum = reader.positive("max_position_embeddings")
    original = _original(reader, section, maximum)
    if rope_type in ("yarn", "longrope") and found.get("factor") is None:
        factor = maximum / original
    else:
        factor = section.positive_number("factor")
    if rope_type == "longrope":
        return _read_longrope(section, theta, factor, original)
    rope = RopeConfig(rope_type=rope_type, theta=theta, factor=factor, original_max_tokens=original)
    if rope_type == "yarn":
        return _with_yarn(section, rope)
    return _with_bands(section, rope) if rope_type == "llama3" else rope


def _original(reader: ConfigReader, section: ConfigReader, maximum: int) -> int:
    """The context before scaling, which some files have at the top level."""
    key = "original_max_position_embeddings"
    inside = section.positive(key, maximum)
    outside = reader.positive(key, inside)
    if section.raw.get(key) is not None and inside != outside:
        raise reader.error(key, outside, f"{inside} as beside 'rope_type'")
    return outside


def _with_bands(section: ConfigReader, rope: RopeConfig) -> RopeConfig:
    """Llama 3.1: which wavelengths are scaled, and which are not."""
    low = section.positive_number("low_freq_factor", 1.0)
    high = section.positive_number("high_freq_factor", 4.0)
    if low >= high:
        raise section.error("low_freq_factor", low, f"less than high_freq_factor={high}")
    return replace(rope, low_freq_factor=low, high_freq_factor=high)


def _with_yarn(section: ConfigReader, rope: RopeConfig) -> RopeConfig:
    """YaRN: the range of its ramp and its temperature; a number of turns that is 0 means the default."""
    if rope.theta <= 1:
        raise section.error("rope_theta", rope.theta, "a number above 1 with 'yarn'")
    fast, slow = (
        section.positive_number(key, default) if section.number(key, default) else default
        for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    return replace(
        rope,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=_yarn_attention_factor(section, rope.factor),
        truncate="truncate" not in section.raw or section.flag("truncate"),
    )


def _read_longrope(section: ConfigReader, theta: float, factor: float, original: int) -> RopeConfig:
    """LongRoPE: what frequencies are divided by, and its attention factor (arXiv:2402.13753)."""
    if original < 2:
        raise section.error("original_max_position_embeddings", original, "at least 2")
    scaled = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeConfig(
        rope_type="longrope",
        theta=theta,
        factor=factor,
        original_max_tokens=original,
        attention_factor=section.positive_number("attention_factor", scaled),
        factors=_factors(section, "short_factor"),
        long_factors=_factors(section, "long_factor"),
    )


def _factors(section: ConfigReader, key: str) -> tuple[float, ...]:
    found = section.raw.get(key)
    if not isinstance(found, list) or not found:
        raise section.error(key, found, "a list of positive numbers")
    numbers = ConfigReader(section.path, {f"{key}[{i}]": number for i, number in enumerate(found)})
    return tuple(map(numbers.positive_number, numbers.raw))


def _yarn_attention_factor(section: ConfigReader, factor: float) -> float:
    """YaRN's attention temperature, as a factor on cos and sin (arXiv:2309.00071, equation 22)."""
    if section.raw.get("attention_factor") is not None:
        return section.positive_number("attention_factor")

    mscale, mscale_all = _weight(section, "mscale"), _weight(section, "mscale_all_dim")
    if mscale and mscale_all:
        return _temperature(mscale, factor) / _temperature(mscale_all, factor)
    return _temperature(1.0, factor)


def _weight(section: ConfigReader, key: str) -> float:
    return section.positive_number(key) if section.number(key, 0.0) else 0.0


def _temperature(weight: float, factor: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
