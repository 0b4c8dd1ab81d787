"""Roll-outs of draft networks: step, most likely token and its probability, until the path is unlikely.

Here is the loop for torch, as chains or beams, over a copy of the sequences' KV pages with room for drafted
tokens; and what a small network on a CPU needs for the compiled one (backend/kernels/draft_chain).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from backend.kernels import draft_chain
from backend.kernels.paged_attention import AttentionPlan, Group, WindowPlan
from backend.kernels.tiles import TiledWeights, in_tiles
from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.mlp import MLP
from backend.layers.rope import Rope
from backend.models.decoder import DecoderLayer
from backend.models.precision import Precision
from backend.speculative import BRANCHES, MIN_PATH_PROBABILITY
from backend.speculative.tree import TreeBudget, best_nodes
from backend.types import PAGE_TOKENS, Draft

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MAX_COMPILED_ELEMENTS = 1 << 22
"""Weights of a network that a CPU's cache holds: the compiled roll-out reads them again for every token."""


def most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely token of each row [B, vocabulary], and its probability: [B] each."""
    probabilities, tokens = logits.softmax(dim=-1, dtype=torch.float32).max(dim=-1)
    return tokens, probabilities


def roll_out(logits: Tensor, advance: Callable[[Tensor, int], Tensor], limits: list[int]) -> list[list[int]]:
    """Chains that begin with the most likely token by `logits` [B, vocabulary], each up to its limit.

    `advance(tokens [B], number)` gives the logits after the `number`-th token of every chain, from 1 on. A
    chain ends with the token that makes its path less likely than MIN_PATH_PROBABILITY.
    """
    tokens, reached = most_likely(logits)
    drafts, probabilities = [tokens], [reached]
    for number in range(1, max(limits)):
        if probabilities[-1].max().item() < MIN_PATH_PROBABILITY:
            break
        tokens, likely = most_likely(advance(tokens, number))
        drafts.append(tokens)
        probabilities.append(probabilities[-1] * likely)
    chains = torch.stack(drafts, dim=1).tolist()
    lengths = 1 + (torch.stack(probabilities)[:-1] >= MIN_PATH_PROBABILITY).sum(dim=0)
    return [
        chain[: min(length, limit)]
        for chain, length, limit in zip(chains, lengths.tolist(), limits, strict=True)
    ]


class RolloutKV:
    """Keys and values of one roll-out: B sequences' stored tokens, then free columns for drafted ones.

    Columns of a sequence are C places in a row: its pages as they are, padded to the longest, then the free
    ones. A mask hides what is padding, not captured or not drafted yet; rotary positions are the caller's.
    """

    def __init__(
        self, storage: KVStorage, table: Ints, visible: Bools, num_free: int, first_layer: int = 0
    ) -> None:
        """`table` [B, P] of pages; `visible` [B, P * 16]; layers of `storage` from `first_layer` on."""
        device = storage.layout.device
        self._count, self._num_stored = visible.shape
        num_more = pages_for(num_free)
        self.kv = storage.copy_pages(torch.from_numpy(table).to(device), num_more, first_layer)
        self._length = self._num_stored + num_more * PAGE_TOKENS
        self._mask = torch.full((self._count, 1, 1, self._length), float("-inf"), device=device)
        self._mask[:, 0, 0, : self._num_stored].masked_fill_(torch.from_numpy(visible).to(device), 0.0)

    def stored(self, dtype: torch.dtype) -> WindowPlan:
        """One query per sequence over its stored tokens alone."""
        return self._plan(1, self._mask[..., : self._num_stored].to(dtype))

    def next_token(self, number: int, angles: tuple[Tensor, Tensor]) -> AttentionContext:
        """One drafted token of each sequence, which sees those before it and itself."""
        self._mask[..., self._num_stored + number] = 0.0
        return self._context(number, 1, self._mask, angles)

    def next_level(self, begin: int, is_seen: Tensor, angles: tuple[Tensor, Tensor]) -> AttentionContext:
        """Drafted tokens [B, n] at the free columns from `begin` on.

        Beside what is visible to all they see `is_seen` [B, n, begin + n] of the free columns.
        """
        num_queries = is_seen.shape[1]
        mask = self._mask.repeat(1, 1, num_queries, 1)
        own = mask[:, 0, :, self._num_stored : self._num_stored + begin + num_queries]
        own.masked_fill_(is_seen, 0.0)
        return self._context(begin, num_queries, mask, angles)

    def _context(
        self, begin: int, num_queries: int, mask: Tensor, angles: tuple[Tensor, Tensor]
    ) -> AttentionContext:
        cos, signed_sin = angles
        columns = torch.arange(num_queries, device=mask.device) + self._num_stored + begin
        rows = torch.arange(self._count, device=mask.device)[:, None] * self._length
        plan = AttentionPlan({None: self._plan(num_queries, mask.to(cos.dtype))})
        return AttentionContext(plan, cos, signed_sin, (rows + columns).view(-1), self.kv)

    def _plan(self, num_queries: int, mask: Tensor) -> WindowPlan:
        group = Group(
            rows=slice(0, self._count * num_queries),
            count=self._count,
            queries=num_queries,
            pages=slice(0, self.kv.num_pages),
            length=mask.shape[-1],
            mask=mask,
            is_causal=False,
            is_whole_step=True,
        )
        return WindowPlan([group], None)


@dataclass(slots=True)
class _Candidates:
    """Tree candidates of B sequences, level by level: [B, n] tensors."""

    tokens: list[Tensor]
    parents: list[Tensor]  # numbers of candidates; -1: the sequence itself
    logprobs: list[Tensor]  # of the whole path
    size: int = 0

    def add(self, tokens: Tensor, parents: Tensor, logprobs: Tensor) -> int:
        """Add a level; returns the number of its first candidate."""
        self.tokens.append(tokens)
        self.parents.append(parents)
        self.logprobs.append(logprobs)
        self.size += tokens.shape[1]
        return self.size - tokens.shape[1]

    def trees(self, depths: list[int], budget: TreeBudget) -> list[Draft]:
        """The best tree of each sequence, at most that deep."""
        levels = (self.tokens, self.parents, self.logprobs)
        tokens, parents, logprobs = (torch.cat(each, dim=1).tolist() for each in levels)
        ends = np.cumsum([level.shape[1] for level in self.tokens])
        return [
            best_nodes(own_tokens[:end], own_parents[:end], own_logprobs[:end], budget.of(depth))
            for own_tokens, own_parents, own_logprobs, depth, end in zip(
                tokens, parents, logprobs, depths, ends[np.array(depths) - 1].tolist(), strict=True
            )
        ]


def grow_trees(
    states: Tensor,
    head: Callable[[Tensor], Tensor],
    advance: Callable[[Tensor, Tensor, int, Tensor], Tensor],
    depths: list[int],
    budget: TreeBudget,
) -> list[Draft]:
    """Trees by a beam of BRANCHES paths, from the states [B, D] after each sequence (arXiv 2406.16858).

    `head` gives logits of states. `advance(tokens [B, n], states [B * n, D], level, is_seen)` gives the
    states after tokens that the states proposed; `is_seen` [B, n, level * n] says which drafted tokens are
    on each path.
    """
    count, device, depth = len(states), states.device, max(depths)
    candidates = _Candidates([], [], [])
    logprobs, tokens = _best_guesses(head(states))
    candidates.add(tokens, torch.full_like(tokens, -1), logprobs)
    numbers = torch.arange(BRANCHES, device=device).expand(count, -1)
    states = states.repeat_interleave(BRANCHES, dim=0)
    rows = torch.arange(count, device=device)[:, None]
    own = torch.eye(BRANCHES, dtype=torch.bool, device=device).expand(count, -1, -1)
    is_seen = own[:, :, :0]
    for level in range(1, depth):
        is_seen = torch.cat((is_seen, own), dim=2)
        states = advance(tokens, states, level, is_seen)
        found, next_tokens = _best_guesses(head(states))
        totals = (logprobs.reshape(-1, 1) + found).view(count, -1)
        next_tokens = next_tokens.view(count, -1)
        first = candidates.add(next_tokens, numbers.repeat_interleave(BRANCHES, dim=1), totals)
        logprobs, chosen = totals.topk(BRANCHES, dim=1)
        tokens, numbers, parents = next_tokens.gather(1, chosen), first + chosen, chosen // BRANCHES
        states = states.view(count, BRANCHES, -1)[rows, parents].flatten(0, 1)
        is_seen = is_seen[rows, parents]
    return candidates.trees(depths, budget)


def _best_guesses(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids [n, BRANCHES] of the most likely tokens of each row."""
    best = F.log_softmax(logits.float(), dim=-1).topk(BRANCHES, dim=-1)
    return best.values.clamp_(max=0.0), best.indices  # rounding must not let a path gain by growing


def page_table(pages: Sequence[Sequence[int]], num_tokens: int) -> Ints:
    """[B, pages of `num_tokens`], padded with 0."""
    width = pages_for(num_tokens)
    table = np.zeros((len(pages), width), dtype=np.int64)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own[:width]
    return table


def is_compiled(precision: Precision, num_elements: int) -> bool:
    """Whether a network of that many weights runs in the compiled roll-out."""
    is_float = precision.device.type == "cpu" and precision.compute is torch.float32
    return is_float and num_elements <= MAX_COMPILED_ELEMENTS


@dataclass(frozen=True, slots=True)
class ChainParts:
    """A network for the compiled roll-out, its layers in the layout "plain", with QK-norm, without biases."""

    embedding: Tensor  # [vocabulary, D]
    layers: list[DecoderLayer]
    head: Tensor  # [vocabulary, D]
    rope: Rope
    num_positions: int
    eps: float
    closing_norm: Tensor | None = None  # [D]
    final_norm: Tensor | None = None  # [D]
    fuse: tuple[Tensor, Tensor] | None = None  # norm [D], matrix [D, D]
    cross: tuple[Tensor, Tensor, Tensor, Tensor] | None = None  # norm, queries' matrix and gains, out matrix


def compile_chain(parts: ChainParts) -> draft_chain.ChainWeights:
    """Lay a network out for the compiled roll-out."""
    floats, head = draft_chain.as_floats, in_tiles([parts.head])
    fuse_norm, fuse = parts.fuse or (None, None)
    cross_norm, query, cross_gains, cross_out = parts.cross or (None, None, None, None)

    def tiles(matrix: Tensor | None) -> TiledWeights:
        return np.empty((0, 0, 0, 0), head.dtype) if matrix is None else in_tiles([matrix])

    scale = parts.layers[0].attention.shape.head_dim ** -0.5
    cos, signed_sin = parts.rope(torch.arange(parts.num_positions), parts.num_positions)
    return draft_chain.ChainWeights(
        embedding=floats(parts.embedding),
        fuse_norm=floats(fuse_norm),
        fuse=tiles(fuse),
        layers=_compile_layers(parts.layers, scale),
        cross=draft_chain.CrossWeights(
            floats(cross_norm),
            tiles(query),
            floats(None if cross_gains is None else cross_gains * scale, 2),
            tiles(cross_out),
        ),
        closing_norm=floats(parts.closing_norm),
        final_norm=floats(parts.final_norm),
        head=head,
        cos=floats(cos[:, 0]),
        signed_sin=floats(signed_sin[:, 0]),
        eps=np.float32(parts.eps),
    )


def _compile_layers(layers: list[DecoderLayer], scale: float) -> draft_chain.LayerWeights:
    gains: list[Tensor] = []
    linears: list[tuple[Tensor, ...]] = []
    for layer in layers:
        attention, block = layer.attention, layer.feed_forward
        assert attention.qk_norm is not None and isinstance(block, MLP)
        own = attention.qk_norm.weight.clone()
        own[: attention.shape.num_heads] *= scale
        gains.append(own)
        linears.append(
            tuple(each.matrix for each in (attention.qkv, attention.out, block.gate_up, block.down))
        )
    qkv, out, gate_up, down = (in_tiles(list(matrices)) for matrices in zip(*linears, strict=True))
    return draft_chain.LayerWeights(
        attention_norm=draft_chain.as_floats(torch.stack([layer.attention_norm.weight for layer in layers])),
        qkv=qkv,
        gains=draft_chain.as_floats(torch.stack(gains)),
        out=out,
        mlp_norm=draft_chain.as_floats(torch.stack([layer.mlp_norm.weight for layer in layers])),
        gate_up=gate_up,
        down=down,
    )
