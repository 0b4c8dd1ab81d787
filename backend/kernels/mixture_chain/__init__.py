"""Chains of a Mixture-of-Attentions head (arXiv 2410.03804) that runs none of its target's layers.

What counts for a head this small are the calls: a round is one here, whatever the number of tokens, and so
is what it remembers of a step. kernel.py is Numba, for CPUs, in float32, made of round_layer's parts;
backend/speculative/mixture_network.py computes the same with torch. Bound: weights are read once for all
rows; those of a head this small stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels.mixture_chain import kernel
from backend.kernels.round_layer import FeedForwardWeights, ProjectionWeights
from backend.kernels.tiles import TiledWeights
from backend.types import PAGE_TOKENS

_mixture_chain, _remember, _store = (
    cast("Callable[..., None]", each) for each in (kernel.mixture_chain, kernel.remember, kernel.store)
)
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class AngleTables(NamedTuple):
    """By position."""

    cos: Floats  # [positions, head_dim]
    signed_sin: Floats


class HeadsWeights(NamedTuple):
    """Heads behind a norm: queries, keys, values, or some of these in this order."""

    norm: Floats  # [D]
    eps: np.float32
    matrix: TiledWeights  # [heads * head_dim, D]
    num_heads: int
    gains: Floats  # [heads that turn, head_dim], behind the division by sqrt(x² + floor)
    floor: np.float32


class AttentionWeights(NamedTuple):
    """Heads, and the way back. Gains of queries hold the scale of scores."""

    heads: HeadsWeights
    out: TiledWeights  # [D, queries * head_dim]


class LayerMixWeights(NamedTuple):
    """Attention between the streams behind the L layers of one position."""

    norm: Floats  # [D], of streams
    eps: np.float32
    embed: Floats  # [L, D]
    matrix: TiledWeights  # [3 * heads * head_dim, D]: queries, keys, values
    gains: Floats  # [2, heads, head_dim]: of queries and keys, behind the division by sqrt(x² + floor)
    floor: np.float32
    out: TiledWeights  # [D, heads * head_dim]


class ChainWeights(NamedTuple):
    """What drafts a token."""

    embedded: Floats  # [vocabulary, D]: normed
    angles: AngleTables
    own: AttentionWeights  # with keys and values
    cross: AttentionWeights  # queries alone
    feed_forward: FeedForwardWeights
    head: ProjectionWeights  # the target's, behind its last norm


class MemoryWeights(NamedTuple):
    """What makes keys and values of verified positions."""

    embedded: Floats
    angles: AngleTables
    own: HeadsWeights  # keys and values
    mix: LayerMixWeights
    cross: HeadsWeights  # keys and values of what is remembered


class Memories(NamedTuple):
    """Keys and values [pages, elements of one], as kernel.py orders them."""

    own: Floats  # of the head's own attention
    cross: Floats  # of what it remembers

    @classmethod
    def new(cls, num_pages: int, kv_heads: int, head_dim: int) -> Memories:
        """With zeros written: memory that comes in only while requests run slows their prompts."""
        shape = num_pages, 2 * kv_heads * head_dim * PAGE_TOKENS
        return cls(np.full(shape, 0, np.float32), np.full(shape, 0, np.float32))


class ChainRows(NamedTuple):
    """B sequences."""

    token_ids: Ints  # [B]: the token of each that drafts follow
    num_known: Ints  # [B] tokens before these
    pages: Ints  # [B, P] of each sequence, enough for what is known
    is_read: Bools  # [pages of memory]; of each sequence one at least


def can_chain(head_dim: int) -> bool:
    """Whether the loops know how to compute heads of this size."""
    return head_dim % kernel.VECTOR == 0


def mixture_chain(
    weights: ChainWeights, memories: Memories, rows: ChainRows, num_tokens: int, least_reached: float
) -> list[list[int]]:
    """The likeliest tokens after those of the rows, at most `num_tokens` each.

    A chain ends with the token that, with those before it, is less than `least_reached` likely. Of pages
    that were not read nothing is seen. Raises ValueError where positions have no angles: the loop itself
    checks no index.
    """
    end, num_positions = int(rows.num_known.max()) + num_tokens, len(weights.angles.cos)
    if end > num_positions:
        raise ValueError(f"drafts up to position {end} are asked for; there are {num_positions}")
    tokens = np.empty((len(rows.num_known), num_tokens), dtype=np.int64)
    lengths = np.empty(len(tokens), dtype=np.int64)
    _mixture_chain(weights, *memories, rows, np.float32(least_reached), tokens, lengths)
    return [chain[:length] for chain, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]


def remember(
    weights: MemoryWeights,
    memories: Memories,
    token_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    streams: Tensor,
) -> None:
    """Write keys and values of T verified tokens to their slots, 0 if not finite; streams [T, L, D]."""
    tokens = [each.numpy() for each in (token_ids, positions, slots, streams.contiguous())]
    _remember(weights, *tokens, *memories)


def store(memories: Memories, slots: Tensor, own: Tensor, cross: Tensor) -> None:
    """The same with keys and values [T, 2 * kv_heads, head_dim] that somebody else computed."""
    _store(slots.numpy(), own.contiguous().numpy(), cross.contiguous().numpy(), *memories)
