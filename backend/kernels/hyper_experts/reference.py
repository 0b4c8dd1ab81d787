"""HyperExperts in torch: gather each token's adapter, one small product per token."""

from __future__ import annotations

import torch
from torch import Tensor

_PART_ELEMENTS = 1 << 22
"""Gathered at once: bounds the memory of long prompts."""


def run_hyper_experts(x: Tensor, numbers: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """See the package."""
    rows = max(1, _PART_ELEMENTS // (2 * down[0].numel()))
    if len(x) <= rows:
        return _run(x, numbers, down, up)
    parts = [
        _run(part, part_numbers, down, up)
        for part, part_numbers in zip(torch.split(x, rows), torch.split(numbers, rows), strict=True)
    ]
    return torch.cat(parts)


def _run(x: Tensor, numbers: Tensor, down: Tensor, up: Tensor) -> Tensor:
    inner = torch.nn.functional.silu(torch.bmm(x[:, None], down.index_select(0, numbers)))
    return torch.bmm(inner, up.index_select(0, numbers))[:, 0]
