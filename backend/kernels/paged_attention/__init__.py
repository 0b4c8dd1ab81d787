"""Causal attention of a ragged batch over paged keys and values; grouped query heads, sliding window.

plan_attention plans once per step; paged_attention applies the plan in every layer. Pages are read in place,
by a loop on a CPU (loop.py) and by a kernel on a GPU (kernel.py). A token's result is on a CPU the same bits
in any company and in any chunk of its prompt. All else is torch: gather, then scaled_dot_product_attention
(reference.py, the test's oracle).
q [T, Hq, D]; kv [pages, 16, 2, Hkv, D], key then value; → [T, Hq * D] in q.dtype; scale 1/sqrt(D). On a CPU,
and with groups, kv may be [pages, 16, 1, Hkv, D]: keys that are the values as well.
In 8 bits kv has a wider last axis, see quantised_kv.py. sink_attention: softmax over the keys and one score
more per head, which has no value (made learnable from Xiao et al., 2023, arXiv:2309.17453).
Bound: memory in decode, reads 2 L Hkv D elements per sequence; compute in prefill.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backend.kernels.device import uses_triton
from backend.kernels.paged_attention import in_place, reference
from backend.kernels.paged_attention.plan import (
    AttentionPlan,
    DeviceStep,
    Group,
    Step,
    WindowPlan,
    plan_attention,
)
from backend.kernels.paged_attention.tree import ancestor_words
from backend.kernels.quantised_kv import LARGEST, stored_width

__all__ = [
    "WIDEST_IN_TRITON",
    "AttentionPlan",
    "DeviceStep",
    "Group",
    "Step",
    "WindowPlan",
    "ancestor_words",
    "paged_attention",
    "plan_attention",
    "sink_attention",
]


WIDEST_IN_TRITON = 256
"""Elements of a head: the tiles of wider ones do not fit in a GPU's shared memory."""


def paged_attention(q: Tensor, kv: Tensor, plan: WindowPlan | list[Group]) -> Tensor:
    """Attend from every token of the step to its own sequence up to itself. Reads `kv`, writes nothing."""
    assert q.dim() == 3 and kv.dim() == 5 and kv.shape[-1] == stored_width(q.shape[-1], kv.dtype)
    if isinstance(plan, list):
        return reference.paged_attention(q, kv, plan)
    if _is_in_triton(q, kv):
        from backend.kernels.paged_attention.kernel import paged_attention as on_gpu

        return on_gpu(q, kv, plan.step.on_device, plan.window)
    if not in_place.is_supported(q, kv) or plan.looped is None:
        return reference.paged_attention(q, kv, plan.groups)
    result = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
    in_place.attend(result, q, kv, plan.looped, plan.step.page_table)
    reference.add_groups(result, q, kv, plan.longer)
    return result


def sink_attention(q: Tensor, kv: Tensor, plan: WindowPlan | list[Group], sinks: Tensor) -> Tensor:
    """The same where a head's score `sinks` [Hq] float32 takes its share of the softmax.

    A GPU scales what its kernel found without: the share of all keys is sigmoid(log Σ e^s - sink).
    """
    if isinstance(plan, WindowPlan) and _is_in_triton(q, kv):
        from backend.kernels.paged_attention.kernel import paged_attention as on_gpu

        log_sums = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        found = on_gpu(q, kv, plan.step.on_device, plan.window, log_sums)
        found.view(q.shape).mul_((log_sums * math.log(2) - sinks).sigmoid_()[..., None])
        return found
    result = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
    if isinstance(plan, list):
        return reference.plain_attention(result, q, kv, plan, sinks=sinks)
    if not in_place.is_supported(q, kv) or plan.looped is None:
        return reference.plain_attention(result, q, kv, plan.groups, sinks=sinks)
    in_place.attend(result, q, kv, plan.looped, plan.step.page_table, sinks)
    return reference.plain_attention(result, q, kv, plan.longer, sinks=sinks)


def _is_in_triton(q: Tensor, kv: Tensor) -> bool:
    return uses_triton(q) and (kv.dtype is q.dtype or kv.dtype in LARGEST)
