"""Roll-outs of draft networks: step, most likely token and its probability, until the path is unlikely.

Here is the loop for torch, as chains or beams, over a copy of the sequences' KV pages with room for drafted
tokens; and what a small network on a CPU needs for the compiled one (backend/kernels/draft_chain).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from backend.config import AttentionSpec, DenseSpec, LayerSpec, ModelConfig, Scalars
from backend.kernels import draft_chain
from backend.kernels.paged_attention import AttentionPlan, Group
from backend.kernels.rotary import Angles
from backend.kernels.tiles import in_tiles
from backend.kv.manager import pages_for
from backend.kv.storage import KVStorage
from backend.layers.attention import AttentionContext
from backend.layers.mlp import MLP
from backend.layers.norm import NoNorm, Norm, RMSNorm
from backend.models.decoder import DecoderLayer
from backend.models.names import WeightNames
from backend.models.precision import Precision
from backend.speculative import BRANCHES, MIN_PATH_PROBABILITY
from backend.speculative.tree import TreeBudget, best_nodes
from backend.types import PAGE_TOKENS, Draft

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Levels = list[tuple[Tensor, Tensor, Tensor]]
"""Candidates by level, [B, n] each: tokens, numbers of the candidates before them, path log-probabilities."""

MAX_COMPILED_ELEMENTS = 1 << 22
"""Weights of a network that a CPU's cache holds: the compiled roll-out reads them again for every token."""


@dataclass(frozen=True, slots=True)
class Beam:
    """The drafted tokens of one level: n paths of each of B sequences."""

    tokens: Tensor  # [B * n]
    parents: Tensor  # [B * n], rows of the level before
    is_seen: Tensor  # [B, n, level * n], which of all drafted tokens are on each path
    level: int  # from 1 on


def roll_out(
    logits: Tensor, advance: Callable[[Beam], Tensor], depths: list[int], budget: TreeBudget | None = None
) -> list[Draft]:
    """Chains, or trees in a budget, that begin with the most likely tokens by `logits` [B, vocabulary].

    `advance` gives the logits [B * n, vocabulary] after a level. A beam follows the most likely path,
    for trees the BRANCHES most likely (arXiv 2406.16858). A chain ends with the token that makes
    its path less likely than MIN_PATH_PROBABILITY.
    """
    width, least = (1, MIN_PATH_PROBABILITY) if budget is None else (BRANCHES, 0.0)
    count, device, depth, num_candidates = len(logits), logits.device, max(depths), 0
    sequences = torch.arange(count, device=device)[:, None]
    own = torch.eye(width, dtype=torch.bool, device=device).expand(count, -1, -1)
    is_seen = own[:, :1, :0]
    reached = torch.zeros(count, 1, device=device)  # log-probabilities of the paths of the beam
    parents = torch.full((count, 1), -1, device=device)  # their last tokens, as numbers of candidates
    levels: Levels = []
    for level in range(1, depth + 1):
        best = F.log_softmax(logits.float(), dim=-1).topk(width, dim=-1)
        found = best.values.clamp_(max=0.0)  # rounding must not let a path gain by growing
        logprobs, tokens = (reached.view(-1, 1) + found).view(count, -1), best.indices.view(count, -1)
        levels.append((tokens, parents.repeat_interleave(width, dim=1), logprobs))
        if level == depth or logprobs.max().exp().item() < least:
            break
        reached, chosen = logprobs.topk(width, dim=1)
        paths, parents = chosen // width, num_candidates + chosen
        num_candidates += logprobs.shape[1]
        rows = (sequences * is_seen.shape[1] + paths).flatten()
        is_seen = torch.cat((is_seen[sequences, paths], own), dim=2)
        logits = advance(Beam(tokens.gather(1, chosen).flatten(), rows, is_seen, level))
    return _chains(levels, depths) if budget is None else _trees(levels, depths, budget)


def _chains(levels: Levels, limits: list[int]) -> list[Draft]:
    tokens, _, logprobs = (torch.cat(each, dim=1) for each in zip(*levels, strict=True))
    lengths = 1 + (logprobs[:, :-1].exp() >= MIN_PATH_PROBABILITY).sum(dim=1)
    ends = [min(length, limit) for length, limit in zip(lengths.tolist(), limits, strict=True)]
    return [chain[:end] for chain, end in zip(tokens.tolist(), ends, strict=True)]


def _trees(levels: Levels, depths: list[int], budget: TreeBudget) -> list[Draft]:
    """The best tree of each sequence, at most that deep."""
    tokens, parents, logprobs = (torch.cat(each, dim=1).tolist() for each in zip(*levels, strict=True))
    ends = np.cumsum([level.shape[1] for level, _, _ in levels]).tolist()
    trees: list[Draft] = []
    for row, depth in enumerate(depths):
        end = ends[min(depth, len(ends)) - 1]
        candidates = tokens[row][:end], parents[row][:end], logprobs[row][:end]
        trees.append(best_nodes(*candidates, budget.of(depth)))
    return trees


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
        self._mask[..., self._num_stored] = 0.0  # the token that the roll-out begins with

    def stored(self, dtype: torch.dtype) -> list[Group]:
        """One query per sequence over its stored tokens alone."""
        return self._plan(1, self._mask[..., : self._num_stored].to(dtype))

    def next(self, is_seen: Tensor | None, angles: Angles) -> AttentionContext:
        """A level of drafted tokens in the next free columns, n of each sequence; None: the first token.

        `is_seen` [B, n, m] as in Beam, of the columns after the first up to this level's.
        """
        if is_seen is None:
            is_seen = self._mask.new_empty((self._count, 1, 0), dtype=torch.bool)
        num_queries, num_seen = is_seen.shape[1:]
        mask = self._mask.repeat(1, 1, num_queries, 1)
        begin = self._num_stored + 1
        mask[:, 0, :, begin : begin + num_seen].masked_fill_(is_seen, 0.0)
        columns = torch.arange(begin + num_seen - num_queries, begin + num_seen, device=mask.device)
        rows = torch.arange(self._count, device=mask.device)[:, None] * self._length
        plan = AttentionPlan({None: self._plan(num_queries, mask.to(angles.table.dtype))})
        return AttentionContext(plan, angles, {None: (rows + columns).view(-1)}, self.kv)

    def _plan(self, num_queries: int, mask: Tensor) -> list[Group]:
        group = Group(
            rows=slice(0, self._count * num_queries),
            count=self._count,
            queries=num_queries,
            pages=slice(0, self.kv.num_pages),
            length=mask.shape[-1],
            mask=mask,
            is_causal=False,
        )
        return [group]


def page_table(pages: Sequence[Sequence[int]], num_tokens: int, padding: int = 0) -> Ints:
    """[B, pages of `num_tokens`], padded."""
    width = pages_for(num_tokens)
    table = np.full((len(pages), width), padding, dtype=np.int64)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own[:width]
    return table


def compiled_precision(precision: Precision, num_elements: int) -> Precision | None:
    """The compiled roll-out's precision for a network of n weights; None where it is left to torch."""
    is_float = precision.device.type == "cpu" and precision.compute is torch.float32
    if not is_float or num_elements > MAX_COMPILED_ELEMENTS:
        return None
    return replace(precision, weights="plain", kv=torch.float32)


def num_elements(config: ModelConfig) -> int:
    """Weights of a dense model that each draft token needs: layers' matrices and the output matrix."""
    rows = config.vocab_size
    for layer in config.layers:
        attention, block = layer.attention, layer.block
        rows += 2 * (attention.num_heads + attention.num_kv_heads) * attention.head_dim
        rows += 3 * block.intermediate_size
    return config.hidden_size * rows


def can_compile(config: ModelConfig, names: WeightNames) -> bool:
    """Whether the compiled roll-out knows all parts of the model."""
    if config.states:
        return False
    is_known = all(layer == _known(layer) for layer in config.layers)
    (attention, *others) = {replace(layer.attention, window=None) for layer in config.layers}
    has_one_rope = not others and attention.rope is not None and attention.rope.rotated == 1
    has_plain_norms = config.norm == "rms" and names.norms_inputs_alone
    return is_known and has_one_rope and has_plain_norms and config.scalars == Scalars()


def _known(layer: LayerSpec) -> LayerSpec:
    """What the compiled roll-out computes of a layer; its windows are checked elsewhere."""
    own = layer.attention
    attention = AttentionSpec(
        num_heads=own.num_heads,
        num_kv_heads=own.num_kv_heads,
        head_dim=own.head_dim,
        rope=own.rope,
        window=own.window,
        qk_norm="head",
    )
    return LayerSpec(attention, DenseSpec(intermediate_size=layer.block.intermediate_size))


def compile_chain(
    embedding: Tensor, layers: list[DecoderLayer], head: Tensor, angles: Angles, eps: float
) -> draft_chain.ChainWeights:
    """Lay a decoder out for the compiled roll-out, yet without norms after its layers.

    Embedding and head are [vocabulary, D]; layers are in the layout "plain", with QK-norm, without biases;
    `angles` of all positions.
    """
    own, absent = _compile_layers(layers), np.empty(0, np.float32)
    no_tiles = own.qkv[:0]  # of the layers' dtype, so that heads of different kinds are compiled once
    cos, signed_sin = (draft_chain.as_floats(values[:, 0]) for values in angles.gather())
    return draft_chain.ChainWeights(
        embedding=draft_chain.as_floats(embedding),
        fuse_norm=absent,
        fuse=no_tiles,
        layers=own,
        cross=draft_chain.CrossWeights(absent, no_tiles, absent[:, None], no_tiles),
        closing_norm=absent,
        final_norm=absent,
        head=in_tiles([head]),
        cos=cos,
        signed_sin=signed_sin,
        eps=np.float32(eps),
    )


def _compile_layers(layers: list[DecoderLayer]) -> draft_chain.LayerWeights:
    gains: list[Tensor] = []
    linears: list[tuple[Tensor, ...]] = []
    for layer in layers:
        attention, block = layer.attention, layer.feed_forward
        assert attention.qk_norm is not None and isinstance(block, MLP)
        own = attention.qk_norm.weight.clone()
        own[: attention.shape.num_heads] *= attention.shape.head_dim**-0.5
        gains.append(own)
        linears.append(
            tuple(each.matrix for each in (attention.qkv, attention.out, block.gate_up, block.down))
        )
    qkv, out, gate_up, down = (in_tiles(list(matrices)) for matrices in zip(*linears, strict=True))
    return draft_chain.LayerWeights(
        attention_norm=_weights([layer.attention_norm for layer in layers]),
        qkv=qkv,
        gains=draft_chain.as_floats(torch.stack(gains)),
        out=out,
        mlp_norm=_weights([layer.mlp_norm for layer in layers]),
        gate_up=gate_up,
        down=down,
    )


def _weights(norms: list[Norm | NoNorm]) -> NDArray[np.float32]:
    return draft_chain.as_floats(torch.stack([norm.weight for norm in norms if isinstance(norm, RMSNorm)]))


def roll_out_compiled(
    chain: draft_chain.ChainWeights,
    storage: KVStorage,
    new_tokens: Sequence[list[int]],
    num_known: Sequence[int],
    pages: Sequence[list[int]],
    limits: list[int],
    **options: Any,  # noqa: ANN401
) -> list[Draft]:
    """Compute each sequence's new tokens after `num_known` columns of its pages, then draft.

    `options`: other fields of ChainRows.
    """
    ends = [known + len(tokens) for known, tokens in zip(num_known, new_tokens, strict=True)]
    rows = draft_chain.ChainRows(
        token_ids=np.concatenate(new_tokens),
        num_new=np.array([len(tokens) for tokens in new_tokens]),
        num_known=np.array(num_known),
        pages=page_table(pages, max(ends) + max(limits)),
        limits=np.array(limits),
        **options,
    )
    (memory,) = storage.memory
    return [*draft_chain.roll_out(chain, memory.numpy(), rows, MIN_PATH_PROBABILITY)]
