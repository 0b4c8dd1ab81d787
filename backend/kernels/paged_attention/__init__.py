"""Causal attention of a ragged batch over paged keys and values; grouped query heads, sliding window.

plan_attention computes gathers and masks once per step; paged_attention applies them in every layer. Torch on
every device: gather, then scaled_dot_product_attention.
q [T, Hq, D]; kv [pages, 16, 2, Hkv, D], key then value; → [T, Hq * D] in q.dtype; scale 1/sqrt(D).
In 8 bits kv has a wider last axis, see quantised_kv.py.
Bound: memory in decode, reads 2 L Hkv D elements per sequence; compute in prefill. Reference: reference.py.
"""

from __future__ import annotations

from torch import Tensor

from backend.kernels.paged_attention import reference
from backend.kernels.paged_attention.plan import AttentionPlan, Group, WindowPlan, plan_attention
from backend.kernels.quantised_kv import stored_width

__all__ = ["AttentionPlan", "Group", "WindowPlan", "paged_attention", "plan_attention"]


def paged_attention(q: Tensor, kv: Tensor, plan: WindowPlan) -> Tensor:
    """Attend from every token of the step to its own sequence up to itself. Reads `kv`, writes nothing."""
    assert q.dim() == 3 and kv.dim() == 5 and kv.shape[-1] == stored_width(q.shape[-1], kv.dtype)
    return reference.paged_attention(q, kv, plan)
