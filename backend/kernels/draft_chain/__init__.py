"""Greedy roll-outs of a small draft network on a CPU: all layers and all draft tokens in one compiled call.

A network this small takes 0.1 ms of arithmetic per token, and several times as much to call its operations
one by one. It is a decoder of L layers, and optionally: a state that is fused into the input and fed back
(EAGLE, arXiv 2401.15077), and cross-attention to a second memory (Mixture of Attentions, arXiv 2410.03804).
kernel.py is Numba, in float32, over KV memory with the engine's page layout; the networks in
backend/speculative compute the same with torch. Bound: weights are read once per token for all rows; ones
this small stay in the CPU's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.draft_chain import kernel
from backend.kernels.tiles import TiledWeights, in_tiles, padded

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NO_ROWS: Floats = np.empty((0, 0), np.float32)

_draft_chain = cast("Callable[..., None]", kernel.draft_chain)


class LayerWeights(NamedTuple):
    """L decoder layers; matrices [L, tiles, K, tile columns], biases as long as the tiles have columns."""

    attention_norm: Floats  # [L, D]
    qkv: TiledWeights  # of [(heads + 2 * kv_heads) * head_dim, D]
    qkv_bias: Floats
    gains: Floats  # [L, heads + kv_heads, head_dim]: norms of queries (with the scale of scores) and keys
    out: TiledWeights  # of [D, heads * head_dim]
    out_bias: Floats
    mlp_norm: Floats  # [L, D]
    gate_up: TiledWeights  # of [2 * M, D]
    gate_up_bias: Floats
    down: TiledWeights  # of [D, M]
    down_bias: Floats


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
    norms_heads: bool  # whether queries and keys are normed
    no_bias: Floats  # [0, 0]


class ChainRows(NamedTuple):
    """B sequences and the R tokens of theirs that are computed first, sequence by sequence.

    Columns are places in a sequence's pages; a token's position is its column - `first_column`.
    """

    token_ids: Ints  # [R]
    states: Floats  # [R, D], or [0, 0]
    num_new: Ints  # [B] of the R tokens, at least one each
    num_known: Ints  # [B] columns before these
    pages: Ints  # [B, P]; with `keeps` enough for all that is computed, else for all but the last new token
    first_column: int  # those before hold nothing
    is_visible: Bools  # [pages of memory], or [0]: nothing is seen of other pages; one new token each then
    limits: Ints  # [B] draft tokens at most
    keeps: bool  # store keys and values of the last new token and of drafts too


def roll_out(
    weights: ChainWeights, memory: Floats, cross_memory: Floats, rows: ChainRows, min_probability: float
) -> list[list[int]]:
    """Compute the new tokens, then append the most likely tokens to each sequence: the chains.

    A chain ends at its limit, or with the token that makes its path less likely than `min_probability`.
    `memory` [L, pages, 16, 2, kv_heads, head_dim] gets the keys and values of all new tokens of a sequence
    but the last, and with `keeps` of all but the chain's last token; with limits of 0, of all.
    `cross_memory` is [pages, 16, 2, kv_heads, head_dim]. Raises ValueError beyond the rotary table or the
    pages.
    """
    num_tokens = int(rows.limits.max())
    end = int((rows.num_known + rows.num_new + np.maximum(rows.limits - 1, 0)).max())
    room = len(weights.cos) + rows.first_column
    if rows.keeps:
        room = min(room, rows.pages.shape[1] * memory.shape[2])
    if end > room:
        raise ValueError(f"{end} tokens of a sequence are to be computed; there is room for {room}")
    tokens = np.empty((len(rows.limits), num_tokens), dtype=np.int64)
    lengths = np.empty(len(tokens), dtype=np.int64)
    _draft_chain(weights, memory, cross_memory, rows, np.float32(min_probability), tokens, lengths)
    return [chain[:length] for chain, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def as_floats(values: Tensor) -> Floats:
    """Contiguous float32 in memory of its own."""
    found: Floats = values.to(torch.float32, copy=True).contiguous().numpy()
    return found


def optional_floats(values: Tensor | None, num_dimensions: int) -> Floats:
    """The same, of length 0 where there are none."""
    if values is None:
        return np.empty((0,) * num_dimensions, np.float32)
    return as_floats(values)


def tile_all(groups: Sequence[list[Tensor]]) -> list[TiledWeights]:
    """Each group of matrices [N, K] in tiles, all in one dtype, so that the loop is compiled once for it."""
    tiled = [in_tiles(group) if group else np.empty((0, 0, 0, 0), np.uint16) for group in groups]
    if all(tiles.dtype == np.uint16 for tiles in tiled):
        return tiled
    widened: list[TiledWeights] = []
    for tiles in tiled:
        bits = tiles if tiles.dtype == np.float32 else (tiles.astype(np.uint32) << 16).view(np.float32)
        widened.append(cast("Floats", bits))
    return widened


def stack_biases(biases: Sequence[Tensor | None]) -> Floats:
    """[L, columns of the tiles]; [0, 0] where no layer has one."""
    known = [bias for bias in biases if bias is not None]
    if not known:
        return NO_ROWS
    stacked = np.zeros((len(biases), padded(len(known[0]))), np.float32)
    for row, bias in zip(stacked, biases, strict=True):
        if bias is not None:
            row[: len(bias)] = bias.float().numpy()
    return stacked
