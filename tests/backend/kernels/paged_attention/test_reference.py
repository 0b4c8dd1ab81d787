"""Pages in 8 bits attend as what they hold does in float32; sinks take a share of the softmax."""

from __future__ import annotations

import pytest
import torch

from backend.kernels.paged_attention import WindowPlan, reference
from backend.kernels.paged_attention.reference import paged_attention, plain_attention
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


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("most_scores", [1, 500, 1 << 26])
def test_sinks_by_their_definition(
    monkeypatch: pytest.MonkeyPatch, most_scores: int, window: int | None, softcap: float | None
) -> None:
    """Each token by itself, in float64; sinks of minus infinity change nothing."""
    monkeypatch.setattr(reference, "_MOST_SCORES", most_scores)
    kv, table = torch.randn(7, 16, 2, 2, 8), torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]])
    lengths = [7, 1, 9], [40, 18, 9]
    plan = planned(*lengths, table, (window,), torch.float32).by_window[window]
    assert isinstance(plan, WindowPlan)
    q, sinks = torch.randn(17, 4, 8), torch.randn(4) * 3
    found = plain_attention(torch.empty(17, 32), q, kv, plan.groups, softcap, sinks).view(17, 4, 8)
    row = 0
    for count, context, pages in zip(*lengths, table, strict=True):
        own = kv[pages].flatten(0, 1).double()
        for last in range(context - count, context):
            first = 0 if window is None else max(0, last - window + 1)
            for head in range(4):
                keys, values = own[first : last + 1, :, head // 2].unbind(1)
                scores = keys @ q[row, head].double() / 8**0.5
                scores = scores if softcap is None else (scores / softcap).tanh() * softcap
                powers = scores.exp()
                expected = (powers @ values) / (powers.sum() + sinks[head].double().exp())
                torch.testing.assert_close(found[row, head].double(), expected, rtol=1e-5, atol=1e-6)
            row += 1
    without = plain_attention(
        torch.empty(17, 32), q, kv, plan.groups, softcap, torch.full((4,), float("-inf"))
    )
    torch.testing.assert_close(without, plain_attention(torch.empty(17, 32), q, kv, plan.groups, softcap))
