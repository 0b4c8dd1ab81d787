"""Paged attention in torch: gather each group's pages, then scaled_dot_product_attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.paged_attention.plan import Group, WindowPlan
from backend.kernels.quantised_kv import dequantise

_FEW_QUERIES = 16
_LEAST_SEQUENCES = 8
"""Query heads are folded into queries for at most this many queries, of at least this many sequences."""


def paged_attention(q: Tensor, kv: Tensor, plan: WindowPlan) -> Tensor:
    """softmax(q kᵀ / sqrt(D) + mask) v for every group of the plan: q [T, Hq, D] → [T, Hq * D]."""
    results = [_attend(q, kv, group) for group in plan.groups]
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined if plan.order is None else joined.index_select(0, plan.order)


def _attend(q: Tensor, kv: Tensor, group: Group) -> Tensor:
    _, num_heads, head_dim = q.shape
    own = q if group.is_whole_step else q[group.rows]
    keys, values = _keys_values(kv, group, head_dim, q.dtype)
    num_kv_heads = keys.shape[1]
    if _may_fold(group, num_heads, num_kv_heads):
        result = _attend_folded(own, keys, values, group)
        return result.reshape(group.count * group.queries, num_heads * head_dim)
    if group.queries == 1:
        queries = own.unsqueeze(2)
    else:
        queries = own.view(group.count, group.queries, num_heads, head_dim).transpose(1, 2)
    result = F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=group.mask,
        is_causal=group.is_causal,
        enable_gqa=num_kv_heads != num_heads,
    )
    if group.queries > 1:
        result = result.transpose(1, 2)
    return result.reshape(group.count * group.queries, num_heads * head_dim)


def _may_fold(group: Group, num_heads: int, num_kv_heads: int) -> bool:
    """Whether to compute query heads that share keys as more queries of one head (GQA packing).

    Torch parallelises over heads: few rows per head are inefficient, few heads leave threads idle.
    """
    return (
        group.count >= _LEAST_SEQUENCES
        and num_heads > num_kv_heads
        and group.queries <= _FEW_QUERIES
        and not group.is_causal
        and group.count * num_kv_heads >= torch.get_num_threads()
    )


def _attend_folded(own: Tensor, keys: Tensor, values: Tensor, group: Group) -> Tensor:
    """`own` [count * Q, Hq, D] → [count, Hkv, Hq / Hkv, D], or with Q > 1 [count, Q, Hkv, Hq / Hkv, D]."""
    num_queries, num_kv_heads, head_dim = group.queries, keys.shape[1], own.shape[2]
    if num_queries > 1:
        split = own.view(group.count, num_queries, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        mask = group.mask if group.mask is None else group.mask.repeat(1, 1, split.shape[2], 1)
        rows = split.reshape(group.count, num_kv_heads, -1, head_dim)
        result = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask)
        return result.view(split.shape).permute(0, 3, 1, 2, 4)
    rows = own.view(group.count, num_kv_heads, -1, head_dim)
    num_rows = rows.shape[2]
    if num_rows == 3:
        rows = F.pad(rows, (0, 0, 0, 1))  # matrix products of three rows take longer than those of four
    result = F.scaled_dot_product_attention(rows, keys, values, attn_mask=group.mask)
    return result[:, :, :num_rows]


def _keys_values(kv: Tensor, group: Group, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of the group, each [count, Hkv, length, D]; views where the pages are one run."""
    pages = kv[group.pages] if isinstance(group.pages, slice) else kv.index_select(0, group.pages)
    by_sequence = pages.view(group.count, -1, *kv.shape[2:])[:, : group.length]
    keys, values = dequantise(by_sequence, head_dim, dtype).permute(2, 0, 3, 1, 4).unbind(0)
    return keys, values
