"""Parts of a dense decoder layer for one token each of a few sequences, a call each: for drafting on a CPU.

What counts there are the calls: torch makes ten to twenty of each part. kernel.py is Numba, in float32 over
matrices in tiles; backend/speculative/round_layer.py computes the same with torch. Bound: memory, or for
matrices of this size the processor's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.round_layer import kernel
from backend.kernels.tiles import TiledWeights

Floats = NDArray[np.float32]

_attend, _feed_forward, _likeliest, _project = (
    cast("Callable[..., None]", each)
    for each in (kernel.attend, kernel.feed_forward, kernel.likeliest, kernel.project)
)
_NOTHING_HIDDEN = np.empty((0, 0), np.float32)
_HIDDEN = np.float32(-1)


class ProjectionWeights(NamedTuple):
    """A matrix [N, K] behind a norm."""

    norm: Floats  # [K], or [0] without a norm
    eps: np.float32
    matrix: TiledWeights


class AttentionWeights(NamedTuple):
    """Queries, keys and values behind a norm; and the way back."""

    norm: Floats  # [D]
    eps: np.float32
    matrix: TiledWeights  # [heads * head_dim, D]: queries first, then keys, then values
    out: TiledWeights  # [D, queries * head_dim]
    num_heads: int  # all of them
    num_queries: int
    floor: np.float32  # queries and keys are divided by sqrt(x² + floor) before they turn


class FeedForwardWeights(NamedTuple):
    """Gates, ups and downs behind a norm."""

    norm: Floats  # [D]
    eps: np.float32
    gate_up: TiledWeights  # [2 * M, D]
    down: TiledWeights  # [D, M]
    last_norm: Floats  # [D], of the sum with what came in


def project(weights: ProjectionWeights, x: Tensor, num_columns: int) -> Tensor:
    """[B, K] → [B, N]."""
    y = torch.empty(len(x), num_columns)
    _project(weights, x.numpy(), y.numpy())
    return y


def attend(
    weights: AttentionWeights,
    x: Tensor,
    angles: tuple[Tensor, Tensor],
    memory: Tensor,
    end: int,
    mask: Tensor | None,
) -> Tensor:
    """X [B, D] → what is to be added to it.

    `angles`: cosines and signed sines [B, heads that turn, head_dim], norms' weights in them. `memory`
    [B, C, 2 * kv_heads, head_dim]: its first `end` columns are seen; keys and values of x go to the last of
    these. `mask` [B or 1, 1, 1, end]: 0 or -inf.
    """
    y = torch.empty_like(x)
    hidden = _NOTHING_HIDDEN
    if mask is not None:
        hidden = np.maximum(mask[:, 0, 0].numpy(), _HIDDEN)  # finite: the compiler relies on that; contiguous
    cos, signed_sin = angles
    _attend(weights, x.numpy(), cos.numpy(), signed_sin.numpy(), memory.numpy(), end, hidden, y.numpy())
    return y


def feed_forward(weights: FeedForwardWeights, x: Tensor) -> Tensor:
    """X [B, D] → the last norm of x and what is added to it."""
    y = torch.empty_like(x)
    _feed_forward(weights, x.numpy(), y.numpy())
    return y


def likeliest(weights: ProjectionWeights, x: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The likeliest token by each row [B, D], and how likely it is; [B] both."""
    tokens, likely = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x))
    _likeliest(weights, x.numpy(), vocab_size, tokens.numpy(), likely.numpy())
    return tokens, likely
