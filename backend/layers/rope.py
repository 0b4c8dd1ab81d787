"""Rotary embedding: frequencies of each scaling method, and a table of cosines and sines."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backend.config import RopeConfig
from backend.kernels.device import uses_triton
from backend.kernels.rotary import Angles

_FIRST_ROWS = 4096


class Rope:
    """Cosines and sines by position, in a table that grows with the longest context.

    Where a share of each head is rotated, these are its first dimensions, and the table has no others. With
    the type "proportional" they are pairs of the whole head, and the other pairs turn by 0.
    """

    __slots__ = ("_frequencies", "_scale", "_table", "dtype")

    def __init__(self, config: RopeConfig, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        is_whole = config.rope_type == "proportional"
        width = head_dim if is_whole else int(head_dim * config.rotated)
        self._frequencies = frequencies(config, width).to(device)
        self._scale = config.attention_factor
        self._table = self._rows(_FIRST_ROWS)

    def __call__(self, positions: Tensor, longest: int) -> Angles:
        """The angles of positions [T], all below `longest`."""
        if longest > self._table.shape[1]:
            self._table = self._rows(1 << (longest - 1).bit_length())
        return Angles(self._table, positions.to(torch.int32))

    def reserve(self, num_positions: int) -> None:
        """Make the table of a GPU as long as it will ever be: its address stays, and no step waits for it.

        On a CPU it grows: at 131,072 positions it would take 134 MB and most of a second at each load, while
        contexts are rarely as long.
        """
        if uses_triton(self._table) and num_positions > self._table.shape[1]:
            self._table = self._rows(num_positions)

    def _rows(self, count: int) -> Tensor:
        """[2, count, head_dim], see Angles; computed in fp32, as transformers does."""
        positions = torch.arange(count, dtype=torch.float32, device=self._frequencies.device)
        angles = positions[:, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        table = torch.stack((torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)))
        return table.to(self.dtype)


def halves_order(config: RopeConfig, head_dim: int, num_heads: int) -> Tensor | None:
    """Which row of q or k is which, to rotate halves, as kernels do, where `config` rotates neighbours.

    [num_heads · head_dim]; None: as they are. Scores do not change, as q and k are reordered alike.
    """
    if not config.is_interleaved:
        return None
    own, turned = torch.arange(head_dim), int(head_dim * config.rotated)
    own = torch.cat((own[:turned:2], own[1:turned:2], own[turned:]))
    return (torch.arange(num_heads)[:, None] * head_dim + own).flatten()


def frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions, [head_dim / 2] fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    base = 1.0 / (config.theta**exponents)
    if config.rope_type == "linear":
        return base / config.factor
    if config.rope_type == "longrope":
        return 1.0 / (torch.tensor(config.factors) * config.theta**exponents)
    if config.rope_type == "proportional":
        base[int(head_dim * config.rotated) // 2 :] = 0
        return base / config.factor
    if config.rope_type == "llama3":
        return _llama3(base, config)
    if config.rope_type == "yarn":
        return _yarn(base, config, head_dim)
    return base


def _llama3(base: Tensor, config: RopeConfig) -> Tensor:
    """Llama 3.1: short wavelengths stay, long ones are scaled by `factor`, those between are interpolated."""
    wavelengths = 2 * math.pi / base
    original = config.original_max_tokens
    low, high = config.low_freq_factor, config.high_freq_factor
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * base / config.factor + blend * base
    stretched = torch.where(wavelengths > original / low, base / config.factor, blended)
    return torch.where(wavelengths < original / high, base, stretched)


def _yarn(base: Tensor, config: RopeConfig, head_dim: int) -> Tensor:
    """YaRN (arXiv:2309.00071): fast-rotating dimensions stay, slow ones are scaled, with a ramp between."""

    def dimension_of(turns: float) -> float:
        ratio = config.original_max_tokens / (turns * 2 * math.pi)
        return head_dim * math.log(ratio) / (2 * math.log(config.theta))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp would divide by zero
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return base / config.factor * ramp + base * (1 - ramp)
