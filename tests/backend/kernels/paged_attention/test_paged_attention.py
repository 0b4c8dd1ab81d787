"""Paged attention on random ragged batches equals plain softmax attention on each sequence."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.kernels.paged_attention import (
    AttentionPlan,
    WindowPlan,
    paged_attention,
    reference,
)
from backend.types import PAGE_TOKENS
from tests.backend.kernels.paged_attention.planned import planned

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8

Lengths = list[tuple[int, int]]  # (query tokens, context tokens) of each sequence


def expected(q: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    """One sequence: q [n, Hq, D], keys and values [L, Hkv, D]; the queries are the last n positions."""
    count, length = q.shape[0], keys.shape[0]
    keys, values = (x.repeat_interleave(q.shape[1] // KV_HEADS, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", q, keys) / HEAD_DIM**0.5
    distance = torch.arange(length - count, length)[:, None] - torch.arange(length)
    hidden = (distance < 0) | (distance >= (window or length))
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(count, -1)


def gathered(q: Tensor, kv: Tensor, plan: AttentionPlan, window: int | None) -> Tensor:
    """What torch alone computes."""
    own = plan.by_window[window]
    assert isinstance(own, WindowPlan)
    return reference.paged_attention(q, kv, own.groups)


def check(lengths: Lengths, window: int | None, *, scatter: bool, seed: int, num_heads: int = HEADS) -> None:
    generator = torch.Generator().manual_seed(seed)
    num_pages = sum(-(-context // PAGE_TOKENS) for _, context in lengths) + 2
    kv = torch.randn(num_pages, PAGE_TOKENS, 2, KV_HEADS, HEAD_DIM, generator=generator)
    free = list(range(1, num_pages))
    if scatter:
        random.Random(seed).shuffle(free)
    table = [[free.pop(0) for _ in range(-(-context // PAGE_TOKENS))] for _, context in lengths]
    width = max(map(len, table))
    page_table = torch.tensor([pages + [0] * (width - len(pages)) for pages in table])
    query_lens, context_lens = [n for n, _ in lengths], [context for _, context in lengths]
    q = torch.randn(sum(query_lens), num_heads, HEAD_DIM, generator=generator)
    plan = planned(query_lens, context_lens, page_table, (window, None), q.dtype)
    results = paged_attention(q, kv, plan.by_window[window]), gathered(q, kv, plan, window)
    begin = 0
    for (count, context), pages in zip(lengths, table, strict=True):
        keys, values = kv[pages].flatten(0, 1)[:context].unbind(1)
        want = expected(q[begin : begin + count], keys, values, window)
        for result in results:
            torch.testing.assert_close(result[begin : begin + count], want, rtol=1e-4, atol=1e-5)
        begin += count


@st.composite
def ragged(draw: st.DrawFn) -> Lengths:
    contexts = draw(st.lists(st.integers(1, 150), min_size=1, max_size=6))
    some = st.sampled_from([1, 4])
    return [(min(context, draw(st.one_of(some, st.integers(1, context)))), context) for context in contexts]


@settings(max_examples=80, deadline=None)
@given(
    lengths=ragged(),
    window=st.one_of(st.none(), st.integers(1, 160)),
    scatter=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_random_batches(lengths: Lengths, window: int | None, scatter: bool, seed: int) -> None:
    check(lengths, window, scatter=scatter, seed=seed)


@pytest.mark.parametrize("window", [None, 20])
def test_decodes_of_very_different_lengths(window: int | None) -> None:
    """More than one padded group, and results back in the step's order."""
    check([(1, 300), (1, 3), (1, 17), (1, 290), (5, 9), (1, 40)], window, scatter=True, seed=5)


@pytest.mark.parametrize("window", [None, 20])
def test_drafts_of_several_sequences_go_in_one_call(window: int | None) -> None:
    lengths = [(4, 60), (4, 40), (1, 50), (3, 40), (4, 300), (4, 61), (100, 130), (100, 130)]
    check(lengths, window, scatter=True, seed=6)
    table = torch.arange(40).view(4, 10)
    plan = planned([5] * 4, [100, 110, 120, 160], table, (window,), torch.float32)
    own = plan.by_window[window]
    assert isinstance(own, WindowPlan)
    assert [group.count for group in own.groups] == [4]


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("num_queries", [1, 3])
@pytest.mark.parametrize("num_heads", [2, 4, 6])
def test_heads_with_the_same_keys_go_together_for_many_sequences(
    num_heads: int, num_queries: int, window: int | None
) -> None:
    lengths = [(num_queries, 40 + i) for i in range(9)]
    check(lengths, window, scatter=True, seed=7, num_heads=num_heads)
    check([(num_queries, 40)] * 9, window, scatter=True, seed=8, num_heads=num_heads)


def test_layers_share_a_plan_when_the_window_covers_everything() -> None:
    plan = planned([1], [30], torch.tensor([[1, 2]]), (None, 64, 4), torch.float32)
    assert plan.by_window[64] is plan.by_window[None]
    assert plan.by_window[4] is not plan.by_window[None]
