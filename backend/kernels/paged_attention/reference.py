"""Paged attention in torch: gather each group's pages, then scaled_dot_product_attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.paged_attention.plan import Group, WindowPlan


def paged_attention(q: Tensor, kv: Tensor, plan: WindowPlan) -> Tensor:
    """See the package."""
    results = [_attend(q, kv, group) for group in plan.groups]
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined if plan.order is None else joined.index_select(0, plan.order)


def _attend(q: Tensor, kv: Tensor, group: Group) -> Tensor:
    _, num_heads, head_dim = q.shape
    if group.queries == 1:
        queries = q[group.rows].unsqueeze(2)
    else:
        queries = q[group.rows].transpose(0, 1).unsqueeze(0)
    gathered = kv[group.pages] if isinstance(group.pages, slice) else kv.index_select(0, group.pages)
    if gathered.dtype != q.dtype:
        gathered = gathered.to(q.dtype)
    by_sequence = gathered.view(group.count, -1, *kv.shape[2:])[:, : group.length]
    keys, values = by_sequence.permute(2, 0, 3, 1, 4).unbind(0)  # each [count, Hkv, length, D]
    result = F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=group.mask,
        is_causal=group.is_causal,
        enable_gqa=keys.shape[1] != num_heads,
    )
    return result.transpose(1, 2).reshape(group.count * group.queries, num_heads * head_dim)
