"""Reads how a checkpoint rotates positions, into one RopeConfig. No torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from backend.config import RopeConfig
from backend.models.config_reader import ConfigReader

SLIDING, FULL = LAYER_TYPES = ("sliding_attention", "full_attention")
LINEAR = "linear_attention"


def read_rope(reader: ConfigReader, *, can_be_partial: bool = False) -> RopeConfig:
    """From transformers 4's `rope_scaling` and `rope_theta`, else from transformers 5's `rope_parameters`.

    `can_be_partial`: the family rotates `partial_rotary_factor` of each head; others refuse that key.
    """
    found = _section(reader)
    if any(isinstance(value, dict) for value in found.values()):
        raise reader.unsupported("rope_parameters", sorted(found), "the same for all layers")
    partial = found.get("partial_rotary_factor", reader.raw.get("partial_rotary_factor"))
    if partial in (None, 1):
        return _read(reader, found)
    if not can_be_partial:
        raise reader.unsupported("partial_rotary_factor", partial, "1.0")
    own = ConfigReader(reader.path, {"partial_rotary_factor": partial})
    return replace(_read(reader, found), rotated=own.positive_number("partial_rotary_factor"))


def read_ropes(reader: ConfigReader, local_theta: float) -> dict[str, RopeConfig]:
    """One for each of LAYER_TYPES, as Gemma 3 has them.

    transformers 5 nests them by type. Before, only full attention had a scaling, and sliding layers had
    `rope_local_base_freq`, or else `local_theta`.
    """
    found = _section(reader)
    if not any(isinstance(value, dict) for value in found.values()):
        local = {"rope_theta": reader.number("rope_local_base_freq", local_theta)}
        return {SLIDING: _read(reader, local), FULL: _read(reader, found)}
    for name in LAYER_TYPES:
        if not isinstance(found.get(name), dict):
            raise reader.error("rope_parameters", sorted(found), f"an object for {name!r}")
    return {name: _read(reader, found[name]) for name in LAYER_TYPES}


def _section(reader: ConfigReader) -> dict[str, Any]:
    found = reader.raw.get("rope_scaling") or reader.raw.get("rope_parameters") or {}
    if not isinstance(found, dict):
        raise reader.error("rope_parameters", found, "an object")
    return found


def _read(reader: ConfigReader, found: dict[str, Any]) -> RopeConfig:
    section = ConfigReader(reader.path, found)
    theta = section.number("rope_theta", reader.number("rope_theta"))
    rope_type = found.get("rope_type", found.get("type", "default"))
    if rope_type == "default":
        return RopeConfig(theta=theta)
    if rope_type == "proportional":
        share = section.positive_number("partial_rotary_factor", 1.0)
        return RopeConfig("proportional", theta, section.positive_number("factor", 1.0), rotated=share)
    if rope_type not in ("linear", "llama3", "yarn"):
        raise reader.unsupported("rope_type", rope_type, "'default', 'linear', 'llama3' and 'yarn'")
    maximum = reader.number("max_position_embeddings")
    original = reader.number(
        "original_max_position_embeddings",  # in transformers the top level overrides the rope section
        section.number("original_max_position_embeddings", maximum),
    )
    if rope_type == "yarn" and found.get("factor") is None:
        factor = maximum / original
    else:
        factor = section.number("factor")
    return RopeConfig(
        rope_type=rope_type,
        theta=theta,
        factor=factor,
        original_max_tokens=int(original),
        low_freq_factor=section.number("low_freq_factor", 1.0),
        high_freq_factor=section.number("high_freq_factor", 4.0),
        beta_fast=section.number("beta_fast", 32.0) or 32.0,
        beta_slow=section.number("beta_slow", 1.0) or 1.0,
        attention_factor=_yarn_attention_factor(section, factor) if rope_type == "yarn" else 1.0,
        truncate=bool(found.get("truncate", True)),
    )


def _yarn_attention_factor(section: ConfigReader, factor: float) -> float:
    """YaRN's attention temperature, as a factor on cos and sin (arXiv:2309.00071, equation 22)."""
    if section.raw.get("attention_factor") is not None:
        return section.number("attention_factor")

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale = section.number("mscale", 0.0)
    mscale_all = section.number("mscale_all_dim", 0.0)
    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)
