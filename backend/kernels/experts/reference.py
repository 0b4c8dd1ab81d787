"""Experts in torch: sort the (token, expert) pairs by expert, one pair of matmuls per active expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from backend.kernels.lora import AdapterRows
from backend.kernels.swiglu import swiglu

if TYPE_CHECKING:
    from backend.kernels.experts import ExpertWeight, Gate


def choose_experts(logits: Tensor, top_k: int, *, normalise: bool) -> tuple[Tensor, Tensor]:
    """Shares [T, k] and experts [T, k] of the router's logits [T, E]; see the package."""
    shares, chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).topk(top_k, dim=-1)
    if normalise:
        shares /= shares.sum(dim=-1, keepdim=True)
    return shares, chosen


def run_experts(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Sequence[ExpertWeight],
    down: Sequence[ExpertWeight],
    rows: AdapterRows | None = None,
    gate: Gate = swiglu,
) -> Tensor:
    """Σ_k weights[t, k] · expert[chosen[t, k]](x[t]); see the package for shapes."""
    num_tokens, top_k = chosen.shape
    if num_tokens == 1 and rows is None:
        return _run_one(x, chosen, weights, gate_up, down, gate)
    flat, order = chosen.reshape(-1).sort(stable=True)
    tokens = order // top_k
    gathered = x.index_select(0, tokens)
    experts, counts = torch.unique_consecutive(flat, return_counts=True)
    results = []
    begin = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        taken = gathered[begin : begin + count]
        wide, back = gate_up[expert], down[expert]
        own = None
        if rows is not None and (wide.adapters is not None or back.adapters is not None):
            own = rows.select(tokens[begin : begin + count].cpu().numpy())
        results.append(back(gate(wide(taken, own)), own))
        begin += count
    joined = torch.cat(results) * weights.reshape(-1).index_select(0, order)[:, None]
    # Back to token order, so that the sum over k does not depend on which other tokens share the step.
    unsorted = torch.empty_like(joined).index_copy_(0, order, joined)
    return unsorted.view(num_tokens, top_k, -1).sum(dim=1).to(x.dtype)


def _run_one(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Sequence[ExpertWeight],
    down: Sequence[ExpertWeight],
    gate: Gate,
) -> Tensor:
    """The same for one token: there is nothing to sort."""
    results = [down[expert](gate(gate_up[expert](x))) for expert in chosen[0].tolist()]
    return (torch.cat(results) * weights[0, :, None]).sum(dim=0, keepdim=True).to(x.dtype)
