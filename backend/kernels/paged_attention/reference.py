"""Paged attention in torch: gather each group's pages, then scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.paged_attention.plan import Group
from backend.kernels.quantised_kv import dequantise

_MOST_SCORES = 1 << 26
"""Scores of query tokens that are computed together by definition: these take 256 MiB."""


def paged_attention(q: Tensor, kv: Tensor, groups: Sequence[Group]) -> Tensor:
    """softmax(q kᵀ / sqrt(D) + mask) v for all groups of a step: q [T, Hq, D] → [T, Hq * D]."""
    if len(groups) == 1 and isinstance(groups[0].rows, slice):
        return _attend(q, kv, groups[0])
    result = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
    add_groups(result, q, kv, groups)
    return result


def plain_attention(
    result: Tensor,
    q: Tensor,
    kv: Tensor,
    groups: Sequence[Group],
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The same by its definition, for what scaled_dot_product_attention lacks, into the rows of `result`.

    `softcap`: scores s become softcap * tanh(s / softcap). `sinks` [Hq]: a score of each head that takes its
    share of the softmax, but has no value (Xiao et al., 2023, arXiv:2309.17453, made learnable).
    """
    for group in groups:
        _, num_heads, head_dim = q.shape
        keys, values = _keys_values(kv, group, head_dim, q.dtype)
        queries = q[group.rows].view(group.count, group.queries, keys.shape[1], -1, head_dim)
        size = max(1, _MOST_SCORES // (group.count * num_heads * group.length))
        parts = []
        for begin in range(0, group.queries, size):
            own = queries[:, begin : begin + size]
            scores = torch.einsum("bqhgd,bhkd->bhgqk", own, keys) * head_dim**-0.5
            if softcap is not None:
                scores = (scores / softcap).tanh_().mul_(softcap)
            if group.is_causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1 + begin)
                scores.masked_fill_(hidden, float("-inf"))
            elif group.mask is not None:
                scores += group.mask[:, :, None, begin : begin + size]
            parts.append(torch.einsum("bhgqk,bhkd->bqhgd", _shares(scores, sinks), values))
        result[group.rows] = torch.cat(parts, 1).reshape(group.count * group.queries, num_heads * head_dim)
    return result


def _shares(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The softmax over the last axis of scores [count, Hkv, group, queries, length]."""
    if sinks is None:
        return scores.softmax(dim=-1)
    sink = sinks.to(scores.dtype).view(1, scores.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sink), -1).softmax(dim=-1)[..., :-1]


def add_groups(result: Tensor, q: Tensor, kv: Tensor, groups: Sequence[Group]) -> None:
    """Write the rows of the groups into the result."""
    for group in groups:
        result[group.rows] = _attend(q, kv, group)


def _attend(q: Tensor, kv: Tensor, group: Group) -> Tensor:
    _, num_heads, head_dim = q.shape
    keys, values = _keys_values(kv, group, head_dim, q.dtype)
    result = F.scaled_dot_product_attention(
        q[group.rows].view(group.count, group.queries, num_heads, head_dim).transpose(1, 2),
        keys,
        values,
        attn_mask=group.mask,
        is_causal=group.is_causal,
        enable_gqa=keys.shape[1] != num_heads,
    )
    return result.transpose(1, 2).reshape(group.count * group.queries, num_heads * head_dim)


def _keys_values(kv: Tensor, group: Group, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of the group, each [count, Hkv, length, D]; views where the pages are one run.

    Where `kv` has keys alone, they are the values as well.
    """
    pages = kv[group.pages] if isinstance(group.pages, slice) else kv.index_select(0, group.pages)
    by_sequence = pages.view(group.count, -1, *kv.shape[2:])[:, : group.length]
    sides = dequantise(by_sequence, head_dim, dtype).permute(2, 0, 3, 1, 4)
    return sides[0], sides[-1]
