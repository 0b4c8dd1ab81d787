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
    own = q if group.is_whole_step else q[group.rows]
    if group.queries == 1:
        queries = own.unsqueeze(2)
    else:
        queries = own.view(group.count, group.queries, num_heads, head_dim).transpose(1, 2)
    keys, values = _keys_values(kv, group, q.dtype)
    result = F.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=group.mask,
        is_causal=group.is_causal,
        enable_gqa=keys.shape[1] != num_heads,
    )
    if group.queries > 1:
        result = result.transpose(1, 2)
    return result.reshape(group.count * group.queries, num_heads * head_dim)


def _keys_values(kv: Tensor, group: Group, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values of the group, each [count, Hkv, length, D]; views where the pages are one run."""
    if isinstance(group.pages, slice):
        begin = group.pages.start * kv.shape[1]
        by_sequence = kv.view(1, -1, *kv.shape[2:])[:, begin : begin + group.length]
    else:
        gathered = kv.index_select(0, group.pages)
        by_sequence = gathered.view(group.count, -1, *kv.shape[2:])[:, : group.length]
    keys, values = by_sequence.to(dtype).permute(2, 0, 3, 1, 4).unbind(0)
    return keys, values
