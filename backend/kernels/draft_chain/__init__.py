"""Greedy roll-outs of a small draft network on a CPU: all layers and all draft tokens in one compiled call.

A network this small takes 0.1 ms of arithmetic per token, and several times as much to call its operations
one by one. It is a decoder of L layers with norms of queries and keys and no biases, and optionally: a state
that is fused into the input and fed back (EAGLE, arXiv 2401.15077), and cross-attention to a second memory
(Mixture of Attentions, arXiv 2410.03804). loop.py is Numba, in float32, over KV memory with the engine's
page layout; the networks in backend/speculative compute the same with torch. Bound: weights are read once
per token for all rows; ones this small stay in the CPU's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.draft_chain import loop
from backend.kernels.tiles import TiledWeights

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_draft_chain = cast("Callable[..., None]", loop.draft_chain)


class LayerWeights(NamedTuple):
    """L decoder layers; matrices in tiles."""

    attention_norm: Floats  # [L, D]
    qkv: TiledWeights  # L of [(heads + 2 * kv_heads) * head_dim, D]
    gains: Floats  # [L, heads + kv_heads, head_dim]: norms of queries (with the scale of scores) and keys
    out: TiledWeights  # L of [D, heads * head_dim]
    mlp_norm: Floats  # [L, D]
    gate_up: TiledWeights  # L of [2 * M, D]
    down: TiledWeights  # L of [D, M]


class CrossWeights(NamedTuple):
    """Attention of drafted tokens to a second memory, between self-attention and feed-forward block."""

    norm: Floats  # [D]
    query: TiledWeights  # of [heads * head_dim, D]
    gains: Floats  # [heads, head_dim], with the scale of scores
    out: TiledWeights  # of [D, heads * head_dim]


class ChainWeights(NamedTuple):
    """A draft network. Absent parts have length 0."""

    embedding: Floats  # [vocabulary, D]
    fuse_norm: Floats  # [D] of the state
    fuse: TiledWeights  # of [D, D]: what the normed state adds to the embedding
    layers: LayerWeights
    cross: CrossWeights
    closing_norm: Floats  # [D]: layers → state
    final_norm: Floats  # [D]: state → input of the head
    head: TiledWeights  # of [vocabulary, D]
    cos: Floats  # [positions, head_dim]
    signed_sin: Floats
    eps: np.float32


class ChainRows(NamedTuple):
    """B sequences and the R tokens of theirs that are computed first, sequence by sequence.

    Columns are places in a sequence's pages; a token's position is its column - `first_column`.
    """

    token_ids: Ints  # [R]
    num_new: Ints  # [B] of the R tokens, at least one each
    num_known: Ints  # [B] columns before these
    pages: Ints  # [B, P]; with `keeps` enough for all that is computed, else for all but the last new token
    limits: Ints  # [B] draft tokens at most
    states: Floats = np.empty((0, 0), np.float32)  # [R, D], where they are fused
    is_visible: Bools = np.empty(0, np.bool_)  # [pages of memory]: with it, sequences have one new token each
    first_column: int = 0  # those before hold nothing
    keeps: bool = False  # store keys and values of the last new token and of drafts too


def roll_out(
    weights: ChainWeights, memory: Floats, rows: ChainRows, min_probability: float
) -> list[list[int]]:
    """Compute the new tokens, then append the most likely tokens to each sequence: the chains.

    A chain ends at its limit, or with the token that makes its path less likely than `min_probability`.
    `memory` [L, pages, 16, 2, kv_heads, head_dim] gets the keys and values of all new tokens of a sequence
    but the last, and with `keeps` of all but the chain's last token; with limits of 0, of all. What
    cross-attention reads is one layer more. Raises ValueError beyond the rotary table or the pages.
    """
    num_tokens = int(rows.limits.max())
    end = int((rows.num_known + rows.num_new + np.maximum(rows.limits - 1, 0)).max())
    room = len(weights.cos) + rows.first_column
    if rows.keeps:
        room = min(room, rows.pages.shape[1] * memory.shape[2])
    if end > room:
        raise ValueError(f"{end} tokens of a sequence are to be computed; there is room for {room}")
    count, num_layers, num_pages, page_tokens, _, _, head_dim = len(rows.limits), *memory.shape
    owners = np.repeat(np.arange(count), rows.num_new)
    numbers = np.arange(len(owners)) - np.repeat(np.cumsum(rows.num_new) - rows.num_new, rows.num_new)
    tokens, lengths = np.empty((count, num_tokens), dtype=np.int64), np.empty(count, dtype=np.int64)
    flat = memory.reshape(num_layers, num_pages, page_tokens, -1, head_dim)
    _draft_chain(weights, flat, rows, (owners, numbers), np.float32(min_probability), tokens, lengths)
    return [chain[:length] for chain, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def as_floats(values: Tensor) -> Floats:
    """Contiguous float32 in memory of its own."""
    found: Floats = values.to(torch.float32, copy=True).contiguous().numpy()
    return found
