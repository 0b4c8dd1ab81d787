"""Pages in 8 bits attend as what they hold does in float32."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.paged_attention import WindowPlan
from backend.kernels.paged_attention.reference import paged_attention
from backend.kernels.quantised_kv import LARGEST, dequantise, quantise
from tests.backend.kernels.paged_attention.planned import planned


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("head_dim", [7, 16])
@pytest.mark.parametrize("table", [[[1, 2, 3], [4, 5, 0]], [[5, 0, 3], [2, 1, 4]]])
def test_pages_in_8_bits(dtype: torch.dtype, head_dim: int, table: list[list[int]]) -> None:
    stored = quantise(torch.randn(6, 16, 2, 2, head_dim), dtype)
    wide = dequantise(stored, head_dim, torch.float32)
    for query_lens, context_lens in (([1, 1], [33, 17]), ([40, 3], [40, 20]), ([30, 1], [48, 32])):
        plan = planned(query_lens, context_lens, torch.tensor(table), (None, 5), torch.float32)
        q = torch.randn(sum(query_lens), 4, head_dim)
        for each in plan.by_window.values():
            assert isinstance(each, WindowPlan)
            assert torch.equal(paged_attention(q, stored, each.groups), paged_attention(q, wide, each.groups))
