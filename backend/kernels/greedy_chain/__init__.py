"""Greedy chains of a small dense decoder: tokens in, the likeliest next ones out, one loop for all of it.

A draft model computes a token at a time. With a few hundred thousand weights that is 0.1 ms of arithmetic,
and several times as much for calling sixty operations one by one: here nothing is called between the tokens.
kernel.py is Numba, for CPUs, in float32; backend/speculative/draft_network.py computes the same with torch.
Bound: weights are read once for all rows; those of a model this small stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from backend.kernels.greedy_chain import kernel
from backend.kernels.tiles import TiledWeights

_greedy_chain = cast("Callable[..., None]", kernel.greedy_chain)
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


class ChainWeights(NamedTuple):
    """A decoder of L layers: contiguous, matrices in tiles, all else in float32.

    Biases are as long as the matrices' tiles have columns.
    """

    embedding: Floats  # [vocabulary, D]
    final_norm: Floats  # [D]
    head: TiledWeights  # one of [vocabulary, D]
    head_bias: Floats  # [1, columns]
    cos: Floats  # [positions, head_dim]
    signed_sin: Floats  # as cos
    attention_norm: Floats  # [L, D]
    qkv: TiledWeights  # L of [(heads + 2 * kv_heads) * head_dim, D]
    qkv_bias: Floats  # [L, columns]
    gains: Floats  # [L, heads + kv_heads, head_dim], of queries (with the scale of scores) and keys
    out: TiledWeights  # L of [D, heads * head_dim]
    out_bias: Floats
    mlp_norm: Floats  # [L, D]
    gate_up: TiledWeights  # L of [2 * M, D]
    gate_up_bias: Floats
    down: TiledWeights  # L of [D, M]
    down_bias: Floats
    eps: np.float32
    norms_heads: bool  # whether queries and keys are normed


class ChainRows(NamedTuple):
    """B sequences, and the R tokens of theirs that are computed first."""

    token_ids: Ints  # [R], sequence by sequence
    num_new: Ints  # [B] of them, at least one each
    num_known: Ints  # [B] tokens before these, whose keys and values are in memory
    pages: Ints  # [B, P] of each sequence, enough for all that is computed


def greedy_chain(
    weights: ChainWeights, memory: Floats, rows: ChainRows, num_tokens: int, least_reached: float
) -> list[list[int]]:
    """Compute the rows, then append the likeliest tokens to each sequence, at most `num_tokens`: the chains.

    A chain ends with the token that, with those before it, is less than `least_reached` likely. Keys and
    values of all that is computed, which is everything but each chain's last token, go to
    `memory` [L, pages, 16, 2, kv_heads, head_dim]. Raises ValueError where that would not fit: the
    loop itself checks no index.
    """
    num_computed = int((rows.num_known + rows.num_new).max()) + max(0, num_tokens - 1)
    room = min(len(weights.cos), rows.pages.shape[1] * memory.shape[2])
    if num_computed > room:
        raise ValueError(f"{num_computed} tokens of a sequence are to be computed; there is room for {room}")
    tokens = np.empty((len(rows.num_new), num_tokens), dtype=np.int64)
    lengths = np.empty(len(tokens), dtype=np.int64)
    _greedy_chain(weights, memory, rows, np.float32(least_reached), tokens, lengths)
    return [chain[:length] for chain, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
