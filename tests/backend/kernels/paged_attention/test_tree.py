"""Attention of trees among chains and single tokens: each node sees its prefix and its path, no more."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from backend.kernels.paged_attention import WindowPlan, paged_attention, reference
from backend.types import PAGE_TOKENS
from tests.backend.kernels.paged_attention.planned import planned

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8

Row = tuple[int, int, tuple[int, ...]]  # tokens before, tokens in the step, parents of a tree or nothing


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    found: list[Row] = []
    for _ in range(draw(st.integers(1, 5))):
        before, count = draw(st.integers(0, 60)), draw(st.sampled_from([1, 2, 4, 4, 9, 70]))
        is_tree = count > 1 and draw(st.booleans())
        parents = tuple(draw(st.integers(-1, i - 1)) for i in range(count - 1)) if is_tree else ()
        found.append((before, count, parents))
    return found


def path_to(query: int, parents: tuple[int, ...]) -> list[int]:
    """Which of the step's tokens of a sequence precede its query, and itself, in order."""
    if not parents:
        return list(range(query + 1))
    path = [query]
    while path[-1] > 0:
        path.append(parents[path[-1] - 1] + 1)
    return path[::-1]


def attend(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query [Hq, D] over what it sees, keys and values [L, Hkv, D]."""
    keys, values = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (keys, values))
    weights = (torch.einsum("hd,khd->hk", query, keys) / HEAD_DIM**0.5).softmax(-1)
    return torch.einsum("hk,khd->hd", weights, values).reshape(-1)


def check(batch: list[Row], window: int | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    query_lens, context_lens = [n for _, n, _ in batch], [before + n for before, n, _ in batch]
    sizes = [-(-context // PAGE_TOKENS) for context in context_lens]
    kv = torch.randn(sum(sizes), PAGE_TOKENS, 2, KV_HEADS, HEAD_DIM, generator=generator)
    free = list(range(sum(sizes)))
    random.Random(seed).shuffle(free)
    table = [[free.pop() for _ in range(size)] for size in sizes]
    page_table = torch.tensor([pages + [0] * (max(sizes) - len(pages)) for pages in table])
    q = torch.randn(sum(query_lens), HEADS, HEAD_DIM, generator=generator)
    trees = {b: parents for b, (_, _, parents) in enumerate(batch) if parents}
    plan = planned(query_lens, context_lens, page_table, (window, None), q.dtype, trees)
    own = plan.by_window[window]
    assert isinstance(own, WindowPlan)
    results = paged_attention(q, kv, own), reference.paged_attention(q, kv, own.groups)
    begin = 0
    for (before, count, parents), pages in zip(batch, table, strict=True):
        keys, values = kv[pages].flatten(0, 1).unbind(1)
        for query in range(count):
            seen = [*range(before), *(before + i for i in path_to(query, parents))][-(window or 10_000) :]
            want = attend(q[begin + query], keys[seen], values[seen])
            for result in results:
                torch.testing.assert_close(result[begin + query], want, rtol=1e-4, atol=1e-5)
        begin += count


@settings(max_examples=40, deadline=None)
@given(batch=rows(), window=st.sampled_from([None, 1, 3, 20]), seed=st.integers(0, 1000))
def test_random_trees_among_others(batch: list[Row], window: int | None, seed: int) -> None:
    check(batch, window, seed)


@pytest.mark.parametrize("window", [None, 5])
def test_trees_and_chains_of_equal_size_go_in_one_call(window: int | None) -> None:
    check([(40, 4, (-1, -1, 0)), (50, 4, ()), (41, 4, (-1, 0, 0)), (45, 1, ())], window, seed=3)
    table = torch.arange(30).view(3, 10)
    trees = {0: (-1, -1, 0), 2: (-1, 0, 0)}
    plan = planned([4] * 3, [100, 110, 120], table, (window,), torch.float32, trees)
    own = plan.by_window[window]
    assert isinstance(own, WindowPlan)
    assert [group.count for group in own.groups] == [3]
