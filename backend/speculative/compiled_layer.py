"""Parts of a drafter's layer that backend/kernels/round_layer computes: a call each instead of a dozen.

They take the place of those of round_layer.py on a CPU in float32, for one token of each sequence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.kernels.round_layer import (
    AttentionWeights,
    FeedForwardWeights,
    Floats,
    LayerMixWeights,
    ProjectionWeights,
    attend,
    feed_forward,
    likeliest,
    mix_layers,
    project,
)
from backend.kernels.tiles import in_tiles
from backend.speculative.round_layer import Angles, Heads

MAX_ELEMENTS = 1 << 20
"""Of a matrix: larger ones are worth torch's threads."""

_MOST_ROWS, _MOST_COLUMNS = 16, 2048
"""Tokens that are computed here at once, and keys that these see in all, over torch's threads. With more
torch is faster."""

_MOST_MIXED = 1024
"""The same for positions whose layers are mixed: each of them is several rows."""

_NO_NORM = np.empty(0, np.float32)
_UNNORMED = -1.0


def compiles(device: torch.device, dtype: torch.dtype, *num_elements: int) -> bool:
    """Whether a few rows are multiplied faster here by matrices with so many elements."""
    return device.type == "cpu" and dtype is torch.float32 and max(num_elements) <= MAX_ELEMENTS


def most_rows() -> int:
    """Of those that are faster here, all of projections, heads and feed-forward parts."""
    return max(1, _MOST_ROWS // torch.get_num_threads())


def most_mixed() -> int:
    """Of positions whose layers are mixed faster here."""
    return max(1, _MOST_MIXED // torch.get_num_threads())


@dataclass(frozen=True, slots=True)
class Norm:
    """x / sqrt(mean(x²) + eps) · gains."""

    gains: Tensor  # [D]
    eps: float


class CompiledProjection:
    """A matrix behind a norm."""

    def __init__(self, norm: Norm, matrix: Tensor) -> None:
        """`matrix` [N, K]."""
        self._weights = ProjectionWeights(*_norm(norm), in_tiles([matrix]))
        self._num_columns = len(matrix)
        self(torch.zeros(1, matrix.shape[1]))  # compiles, or reads what was compiled

    def __call__(self, x: Tensor) -> Tensor:
        """[B, K] → [B, N]."""
        return project(self._weights, x, self._num_columns)


class CompiledHead:
    """The vocabulary behind a norm, or without."""

    def __init__(self, norm: Norm | None, matrix: Tensor) -> None:
        """`matrix` [vocabulary, D]."""
        self._weights = ProjectionWeights(*_norm(norm), in_tiles([matrix]))
        self._vocab_size = len(matrix)
        self(torch.zeros(1, matrix.shape[1]))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest token by each row [B, D], and how likely it is; [B] both."""
        return likeliest(self._weights, x, self._vocab_size)


class CompiledAttention:
    """Attention of one token of each sequence."""

    def __init__(self, heads: Heads, norm: Norm, matrix: Tensor, out: Tensor, head_eps: float | None) -> None:
        """`matrix`: of queries, or of queries, keys and values. `head_eps`: None: these are not normed."""
        size = heads.head_dim
        self._weights = AttentionWeights(
            *_norm(norm),
            matrix=in_tiles([matrix]),
            out=in_tiles([out]),
            num_heads=len(matrix) // size,
            num_queries=heads.num_heads,
            floor=np.float32(_UNNORMED if head_eps is None else size * head_eps),
        )
        self._most_columns = _MOST_COLUMNS // torch.get_num_threads()
        angles = Angles(torch.ones(1, 1, size), torch.ones(1, 1, size))
        memory = torch.zeros(1, 1, 2 * heads.num_kv_heads, size)
        self.attend(torch.zeros(1, matrix.shape[1]), memory, 1, angles, None)

    def serves(self, num_rows: int, end: int) -> bool:
        """Whether so many rows over so many columns are faster here."""
        return num_rows * end <= self._most_columns

    def attend(self, x: Tensor, memory: Tensor, end: int, angles: Angles, mask: Tensor | None) -> Tensor:
        """x [B, D] over `end` columns of memory [B, C, 2 * kv_heads, head_dim] → what is to be added to x.

        Keys and values of x go to the last of these columns. `angles` hold the weights of the heads' norms.
        """
        return attend(self._weights, x, (angles.cos, angles.signed_sin), memory, end, mask)


class CompiledFeedForward:
    """What follows attention: the last norm of x + down(silu(gate) · up) of normed x."""

    def __init__(self, norm: Norm, gate_up: Tensor, down: Tensor, last: Norm) -> None:
        assert last.eps == norm.eps
        last_norm, _ = _norm(last)
        self._weights = FeedForwardWeights(*_norm(norm), in_tiles([gate_up]), in_tiles([down]), last_norm)
        self(torch.zeros(1, len(down)))

    def __call__(self, x: Tensor) -> Tensor:
        """[B, D] → [B, D]."""
        return feed_forward(self._weights, x)


class CompiledLayerMix:
    """Attention between the streams behind the layers of a position, and their mean."""

    def __init__(self, norm: Norm, embed: Tensor, matrix: Tensor, out: Tensor, head_norm: Norm) -> None:
        """`embed` [L, D] is added to normed streams; `matrix`: of queries, keys and values.

        `head_norm`: its gains [2, heads, head_dim] are those of queries and of keys.
        """
        size = head_norm.gains.shape[-1]
        self._weights = LayerMixWeights(
            *_norm(norm),
            embed=embed.float().contiguous().numpy().copy(),
            matrix=in_tiles([matrix]),
            gains=(head_norm.gains.float() * math.sqrt(size)).contiguous().numpy(),
            floor=np.float32(size * head_norm.eps),
            out=in_tiles([out]),
        )
        self(torch.zeros(1, *embed.shape))

    def __call__(self, streams: Tensor) -> Tensor:
        """[T, L, D] → [T, D]."""
        return mix_layers(self._weights, streams)


def _norm(norm: Norm | None) -> tuple[Floats, np.float32]:
    if norm is None:
        return _NO_NORM, np.float32(0)
    gains: Floats = norm.gains.float().contiguous().numpy().copy()
    return gains, np.float32(norm.eps)
