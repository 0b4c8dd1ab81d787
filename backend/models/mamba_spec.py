"""Mamba-2 layers as families write them in config.json. No torch."""

from __future__ import annotations

import math

from backend.config import GatedNorm, MambaSpec
from backend.models.config_reader import ConfigReader
from backend.models.layer_specs import read_activation

_UNBOUNDED = 2.0**127
"""Larger limits are none: float32 has few numbers above it."""


def read_mamba(reader: ConfigReader, inner_size: int, norm: GatedNorm | None) -> MambaSpec:
    """By keys that begin with `mamba_`. Raises CheckpointError, as all functions here do."""
    read_activation(reader, only=("silu",))
    heads, dim = reader.positive("mamba_n_heads"), reader.raw.get("mamba_d_head")
    if dim in (None, "auto"):
        dim = inner_size // heads
    if dim != reader.positive("mamba_d_head", dim) or dim * heads != inner_size:
        raise reader.error("mamba_d_head", dim, f"{inner_size} / mamba_n_heads={heads}")
    return MambaSpec(
        num_heads=heads,
        num_groups=read_groups(reader, "mamba_n_groups", heads),
        head_dim=dim,
        state_size=reader.positive("mamba_d_state"),
        conv_tokens=reader.positive("mamba_d_conv"),
        conv_bias=reader.flag("mamba_conv_bias"),
        in_bias=reader.flag("mamba_proj_bias"),
        out_bias=reader.flag("mamba_proj_bias"),
        time_step_limits=read_limits(reader),
        norm=norm,
    )


def read_groups(reader: ConfigReader, key: str, num_heads: int) -> int:
    """A number of groups that heads can be in."""
    groups = reader.positive(key)
    if num_heads % groups:
        raise reader.error(key, groups, f"a divisor of {num_heads} heads")
    return groups


def read_limits(reader: ConfigReader) -> tuple[float, float]:
    """`time_step_limit`: two numbers, the second of which may be infinite."""
    found = reader.raw.get("time_step_limit")
    limits = [0.0, math.inf] if found is None else found
    if isinstance(limits, list):
        limits = [math.inf if each == {"__float__": "Infinity"} else each for each in limits]
    match limits:
        case [int() | float() as least, int() | float() as most] if 0 <= least < min(most, _UNBOUNDED):
            return float(least), math.inf if most > _UNBOUNDED else float(most)
    raise reader.error("time_step_limit", found, "two numbers, 0 <= the first < the second")
