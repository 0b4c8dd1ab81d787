"""A small Mixture-of-Attentions head on a CPU: a round is one compiled call, and so is what it remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.kernels.mixture_chain import (
    AngleTables,
    AttentionWeights,
    Bools,
    ChainRows,
    ChainWeights,
    HeadsWeights,
    LayerMixWeights,
    Memories,
    MemoryWeights,
    mixture_chain,
    remember,
    store,
)
from backend.kernels.round_layer import Floats, ProjectionWeights
from backend.kernels.tiles import in_tiles
from backend.kv.storage import KVStorage
from backend.speculative.heads import HeadReader, LayerShape
from backend.speculative.mixture_network import MixtureNetwork
from backend.speculative.mixture_rounds import MixtureRounds, Verified
from backend.speculative.round_kv import page_table
from backend.types import Sequence

_MOST_REMEMBERED = 1024
"""Tokens over torch's threads: with more, torch is faster."""


@dataclass(frozen=True, slots=True)
class CompiledMixture:
    """See MixtureHead: computed in float32 by backend/kernels/mixture_chain."""

    chain: ChainWeights
    memory: MemoryWeights
    network: MixtureNetwork  # the same by torch

    @property
    def page_bytes(self) -> int:
        """See MixtureHead."""
        return sum(memory.nbytes for memory in self._memories(1))

    def open(self, target: KVStorage) -> MixtureRounds:
        """See MixtureHead."""
        return CompiledMixtureRounds(self, self._memories(target.num_pages))

    def _memories(self, num_pages: int) -> Memories:
        kv_heads, head_dim = self.memory.own.gains.shape
        return Memories.new(num_pages, kv_heads, head_dim)


class CompiledMixtureRounds:
    """See MixtureRounds."""

    def __init__(self, head: CompiledMixture, memories: Memories) -> None:
        self._head, self._memories = head, memories
        self._most_remembered = _MOST_REMEMBERED // torch.get_num_threads()
        self._warm_up()

    def remember(self, verified: Verified) -> None:
        """See MixtureRounds."""
        ids, positions = verified.token_ids, verified.positions
        slots, streams = verified.slots, verified.streams
        if len(slots) <= self._most_remembered:
            remember(self._head.memory, self._memories, ids, positions, slots, streams)
        else:
            own, cross = self._head.network.remember(ids, positions, verified.longest, streams)
            store(self._memories, slots, own, cross)

    def draft(
        self, sequences: list[Sequence], is_read: Bools, num_tokens: int, least_reached: float
    ) -> list[list[int]]:
        """See MixtureRounds."""
        known = [sequence.num_computed_tokens for sequence in sequences]
        rows = ChainRows(
            token_ids=np.array([sequence.tokens[-1] for sequence in sequences]),
            num_known=np.array(known),
            pages=page_table([sequence.pages for sequence in sequences], max(known)),
            is_read=is_read,
        )
        return mixture_chain(self._head.chain, self._memories, rows, num_tokens, least_reached)

    def _warm_up(self) -> None:
        """Compile now, or read what was compiled before: seconds that no request is to wait for."""
        nothing = np.zeros(1, np.int64)
        rows = ChainRows(nothing, nothing + 1, np.zeros((1, 1), np.int64), np.ones(1, np.bool_))
        mixture_chain(self._head.chain, self._memories, rows, 1, 0.0)
        first, streams = torch.zeros(1, dtype=torch.int64), torch.zeros(1, *self._head.memory.mix.embed.shape)
        remember(self._head.memory, self._memories, first, first, first, streams)
        kv_heads, head_dim = self._head.memory.own.gains.shape
        store(self._memories, first, *torch.zeros(2, 1, 2 * kv_heads, head_dim))


def compile_mixture(
    head: HeadReader,
    shape: LayerShape,
    network: MixtureNetwork,
    mix: LayerMixWeights,
    guess: ProjectionWeights,
    num_positions: int,
) -> CompiledMixture:
    """Lay the weights of a head out. Raises CheckpointError.

    `network`: the same by torch; `guess`: the target's head behind its last norm.
    """
    cos, signed_sin = head.rope(shape)(torch.arange(num_positions), num_positions)
    angles = AngleTables(as_array(cos[:, 0]), as_array(signed_sin[:, 0]))
    table = as_array(network.embedded)
    chain = ChainWeights(
        embedded=table,
        angles=angles,
        own=_attention(head, shape, "self_attn", "qkv", "input_layernorm"),
        cross=_attention(head, shape, "cross_attn", "q", "cross_attn_layernorm"),
        feed_forward=head.feed_forward(shape, "post_attention_layernorm", "output_norm"),
        head=guess,
    )
    memory = MemoryWeights(
        embedded=table,
        angles=angles,
        own=_heads(head, shape, "self_attn", "kv", "input_layernorm"),
        mix=mix,
        cross=_heads(head, shape, "cross_attn", "kv", "layer_attention.output_norm"),
    )
    return CompiledMixture(chain, memory, network)


def _attention(head: HeadReader, shape: LayerShape, name: str, parts: str, norm: str) -> AttentionWeights:
    width, queries = shape.hidden_size, shape.num_attention_heads * shape.head_dim
    out = head.tensor(f"{name}.o_proj.weight", width, queries)
    return AttentionWeights(_heads(head, shape, name, parts, norm), in_tiles([out]))


def _heads(head: HeadReader, shape: LayerShape, name: str, parts: str, norm: str) -> HeadsWeights:
    """Those of `parts`: "q", "k" and "v", or some of these, in this order."""
    width, size, eps = shape.hidden_size, shape.head_dim, shape.rms_norm_eps
    counts = {"q": shape.num_attention_heads, "k": shape.num_key_value_heads, "v": shape.num_key_value_heads}
    matrices = [head.tensor(f"{name}.{part}_proj.weight", counts[part] * size, width) for part in parts]
    # Lengths are divided by sqrt(x²), not by its mean's; queries have the scale of scores in theirs as well.
    gains = [
        head.tensor(f"{name}.{part}_norm.weight", size).expand(counts[part], -1) * scale
        for part, scale in (("q", 1.0), ("k", math.sqrt(size)))
        if part in parts
    ]
    return HeadsWeights(
        norm=as_array(head.tensor(f"{norm}.weight", width)),
        eps=np.float32(eps),
        matrix=in_tiles([torch.cat(matrices)]),
        num_heads=sum(counts[part] for part in parts),
        gains=as_array(torch.cat(gains)),
        floor=np.float32(size * eps),
    )


def as_array(values: Tensor) -> Floats:
    """For compiled loops: contiguous, in memory of its own."""
    found: Floats = values.to(torch.float32, copy=True).contiguous().numpy()
    return found
