"""Parts of a drafter's layer that backend/kernels/round_layer computes: a call each instead of a dozen.

They take the place of those of round_layer.py on a CPU in float32, for one token of each sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.kernels.round_layer import (
    AttentionWeights,
    FeedForwardWeights,
    Floats,
    ProjectionWeights,
    attend,
    feed_forward,
    likeliest,
    project,
)
from backend.kernels.tiles import in_tiles
from backend.speculative.round_layer import Angles, Heads

MAX_ELEMENTS = 1 << 20
"""Of a matrix: larger ones are worth torch's threads."""

_MOST_ROWS, _MOST_COLUMNS = 16, 2048
"""Tokens that are computed here at once, and keys that these see in all, over torch's threads. With more
torch is faster."""

_NO_NORM = np.empty(0, np.float32)


def compiles(device: torch.device, dtype: torch.dtype, *num_elements: int) -> bool:
    """Whether a few rows are multiplied faster here by matrices with so many elements."""
    return device.type == "cpu" and dtype is torch.float32 and max(num_elements) <= MAX_ELEMENTS


def most_rows() -> int:
    """Of those that are faster here, all of projections, heads and feed-forward parts."""
    return max(1, _MOST_ROWS // torch.get_num_threads())


@dataclass(frozen=True, slots=True)
class Norm:
    """x / sqrt(mean(x²) + eps) · gains."""

    gains: Tensor  # [D]
    eps: float


class CompiledProjection:
    """A matrix behind a norm."""

    def __init__(self, norm: Norm, matrix: Tensor) -> None:
        """`matrix` [N, K]."""
        self._weights = projection_weights(norm, matrix)
        self._num_columns = len(matrix)
        self(torch.zeros(1, matrix.shape[1]))  # compiles, or reads what was compiled

    def __call__(self, x: Tensor) -> Tensor:
        """[B, K] → [B, N]."""
        return project(self._weights, x, self._num_columns)


class CompiledHead:
    """The vocabulary behind a norm, or without."""

    def __init__(self, weights: ProjectionWeights, vocab_size: int) -> None:
        """`weights` of [vocabulary, D]."""
        self._weights, self._vocab_size = weights, vocab_size
        self(torch.zeros(1, weights.matrix.shape[2]))

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The likeliest token by each row [B, D], and how likely it is; [B] both."""
        return likeliest(self._weights, x, self._vocab_size)


class CompiledAttention:
    """Attention of one token of each sequence."""

    def __init__(self, heads: Heads, norm: Norm, matrix: Tensor, out: Tensor) -> None:
        """`matrix`: of queries, keys and values; queries and keys are normed as well."""
        size = heads.head_dim
        self._weights = AttentionWeights(
            *_norm(norm),
            matrix=in_tiles([matrix]),
            out=in_tiles([out]),
            num_heads=len(matrix) // size,
            num_queries=heads.num_heads,
            floor=np.float32(size * norm.eps),
        )
        self._most_columns = _MOST_COLUMNS // torch.get_num_threads()
        angles = Angles(*torch.ones(2, 1, heads.num_rotated, size))
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

    def __init__(self, weights: FeedForwardWeights) -> None:
        self._weights = weights
        self(torch.zeros(1, weights.norm.shape[0]))

    def __call__(self, x: Tensor) -> Tensor:
        """[B, D] → [B, D]."""
        return feed_forward(self._weights, x)


def projection_weights(norm: Norm | None, matrix: Tensor) -> ProjectionWeights:
    """`matrix` [N, K] behind a norm, or without."""
    return ProjectionWeights(*_norm(norm), in_tiles([matrix]))


def feed_forward_weights(norm: Norm, gate_up: Tensor, down: Tensor, last: Norm) -> FeedForwardWeights:
    """Gates and ups [2 * M, D] behind a norm, downs [D, M], and the norm of the sum."""
    assert last.eps == norm.eps
    last_norm, _ = _norm(last)
    return FeedForwardWeights(*_norm(norm), in_tiles([gate_up]), in_tiles([down]), last_norm)


def _norm(norm: Norm | None) -> tuple[Floats, np.float32]:
    if norm is None:
        return _NO_NORM, np.float32(0)
    gains: Floats = norm.gains.float().contiguous().numpy().copy()
    return gains, np.float32(norm.eps)
