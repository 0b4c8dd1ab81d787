"""The loop over pages equals torch, reads nothing that belongs to others, and does not depend on company."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llvmlite.binding import get_host_cpu_features
from torch import Tensor

from backend.kernels.paged_attention import WindowPlan, in_place, paged_attention, reference, sink_attention
from backend.kernels.quantised_kv import LARGEST, dequantise, quantise, stored_width
from backend.types import PAGE_TOKENS
from tests.backend.kernels.paged_attention.planned import planned

pytestmark = pytest.mark.timeout(400)  # the loops are compiled first
Row = tuple[int, int, tuple[int, ...]]  # tokens before, tokens in the step, parents of a tree or nothing


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@dataclass
class Batch:
    """Sequences on scattered pages; what belongs to none of them is NaN."""

    rows: list[Row]
    kv: Tensor
    table: list[list[int]]
    q: list[Tensor]  # of each sequence [n, heads, D]
    sinks: Tensor | None = None

    def plan(self, members: list[int], window: int | None) -> WindowPlan:
        width = max(len(self.table[i]) for i in members)
        table = torch.tensor([self.table[i] + [0] * (width - len(self.table[i])) for i in members])
        query_lens = [self.rows[i][1] for i in members]
        context_lens = [self.rows[i][0] + self.rows[i][1] for i in members]
        trees = {b: self.rows[i][2] for b, i in enumerate(members) if self.rows[i][2]}
        plan = planned(query_lens, context_lens, table, (window,), torch.float32, trees)
        found = plan.by_window[window]
        assert isinstance(found, WindowPlan)
        return found

    def attend(self, members: list[int], window: int | None) -> list[Tensor]:
        """The results of each member, computed together."""
        q = torch.cat([self.q[i] for i in members])
        plan = self.plan(members, window)
        if self.sinks is None:
            found = paged_attention(q, self.kv, plan)
        else:
            found = sink_attention(q, self.kv, plan, self.sinks)
        return list(found.split([self.rows[i][1] for i in members]))


def batch(
    rows: list[Row],
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int, int] = (4, 2, 16),
    seed: int = 0,
    sides: int = 2,
) -> Batch:
    """`heads`: query heads, key heads, head size; `sides` 1: keys are the values as well."""
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads, head_dim = heads
    sizes = [-(-(before + count) // PAGE_TOKENS) for before, count, _ in rows]
    free = list(range(sum(sizes) + 1))
    random.Random(seed).shuffle(free)
    kv = torch.full((len(free), PAGE_TOKENS, sides, num_kv_heads, head_dim), float("nan"))
    table = [[free.pop() for _ in range(size)] for size in sizes]
    for (before, count, _), pages in zip(rows, table, strict=True):
        own = torch.randn(before + count, sides, num_kv_heads, head_dim, generator=generator)
        for page, part in zip(pages, own.split(PAGE_TOKENS), strict=True):
            kv[page, : len(part)] = part
    q = [torch.randn(count, num_heads, head_dim, generator=generator) for _, count, _ in rows]
    return Batch(rows, quantise(kv, dtype) if dtype in LARGEST else kv.to(dtype), table, q)


def expected(own: Batch, members: list[int], window: int | None) -> list[Tensor]:
    """What torch computes in pages without NaN."""
    q = torch.cat([own.q[i] for i in members])
    kv = dequantise(own.kv, q.shape[2], torch.float32).nan_to_num_(0.0)
    groups = own.plan(members, window).groups
    if own.sinks is None:
        found = reference.paged_attention(q, kv, groups)
    else:
        found = reference.plain_attention(q.new_empty(len(q), q[0].numel()), q, kv, groups, sinks=own.sinks)
    return list(found.split([own.rows[i][1] for i in members]))


def check(own: Batch, window: int | None) -> None:
    """The batch equals torch; each sequence alone, and on several threads, has the same bits."""
    everyone = list(range(len(own.rows)))
    torch.set_num_threads(1)
    together = own.attend(everyone, window)
    for found, want in zip(together, expected(own, everyone, window), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    for i in everyone:
        assert torch.equal(own.attend([i], window)[0], together[i])
    for threads in (2, 5):
        torch.set_num_threads(threads)
        for found, same in zip(own.attend(everyone[::-1], window)[::-1], together, strict=True):
            assert torch.equal(found, same)


@st.composite
def row(draw: st.DrawFn) -> Row:
    before = draw(st.one_of(st.integers(0, 100), st.sampled_from([15, 16, 17, 31, 32, 48])))
    count = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 15, 16, 32, 33, 70]))
    if draw(st.booleans()):
        return before, count, ()
    count = draw(st.sampled_from([2, 3, 5, 17, 40, 64]))
    return before, count, tuple(draw(st.integers(-1, i - 1)) for i in range(count - 1))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(row(), min_size=1, max_size=5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, *LARGEST]),
    heads=st.sampled_from(
        [
            (1, 1, 8),
            (2, 2, 32),
            (6, 2, 24),
            (3, 1, 40),
            (8, 2, 64),
            (7, 7, 2),
            (5, 1, 130),
            (3, 3, 4),
            (5, 1, 132),
        ]
    ),
    window=st.sampled_from([None, None, 1, 2, 7, 16, 33]),
    sink=st.sampled_from([None, -3.0, 0.0, 3.0, 90.0]),
    sides=st.sampled_from([2, 2, 1]),
    seed=st.integers(0, 1000),
)
def test_random_batches(
    monkeypatch_module: None,
    rows: list[Row],
    dtype: torch.dtype,
    heads: tuple[int, int, int],
    window: int | None,
    sink: float | None,
    sides: int,
    seed: int,
) -> None:
    assume(dtype not in LARGEST or heads[2] % 4 == 0)
    own = batch(rows, dtype, heads, seed, sides)
    if sink is not None:
        own.sinks = torch.randn(heads[0], generator=torch.Generator().manual_seed(seed)) + sink
    check(own, window)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[None]:
    """Threads take part in the smallest steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place, "_LEAST_ELEMENTS", 0)
        yield


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("head_dim", [1, 15, 16, 17, 33, 128])
def test_edges_of_pages_and_heads(length: int, head_dim: int) -> None:
    check(batch([(length - 1, 1, ()), (40, 1, ())], heads=(2, 1, head_dim)), None)


@pytest.mark.parametrize("is_tree", [False, True])
def test_a_query_does_not_depend_on_later_ones(*, is_tree: bool) -> None:
    """Greedy texts with drafts equal those without, as the first of several have the bits of single ones."""
    count = 12
    own = batch([(50, count, tuple(range(-1, count - 2)) if is_tree else ())], torch.bfloat16, (6, 2, 64))
    (together,) = own.attend([0], None)
    for i in range(count):
        alone = Batch([(50 + i, 1, ())], own.kv, own.table, [own.q[0][i : i + 1]])
        assert torch.equal(alone.attend([0], None)[0][0], together[i])


def test_keys_alone_are_the_values_as_well() -> None:
    one = batch([(40, 1, ()), (3, 20, ()), (30, 4, (-1, 0, 0))], heads=(6, 2, 24), sides=1)
    two = replace(one, kv=one.kv.expand(-1, -1, 2, -1, -1).contiguous())
    everyone = [0, 1, 2]
    for found, want in zip(one.attend(everyone, None), two.attend(everyone, None), strict=True):
        assert torch.equal(found, want)


@pytest.mark.parametrize("window", [None, 3, 20])
@pytest.mark.parametrize("before", [0, 13, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_node_has_the_bits_of_plain_decoding(before: int, window: int | None, dtype: torch.dtype) -> None:
    """Others lie between the tokens of its path, which may reach into the next page."""
    parents = (-1, 0, 0, -1, 2, 2, 5, 6, 7, 4, 8, 10, 3, 11)
    own = batch([(before, 1 + len(parents), parents)], dtype, (6, 2, 64))
    (together,) = own.attend([0], window)

    def slot(position: int) -> tuple[int, int]:
        return own.table[0][position // PAGE_TOKENS], position % PAGE_TOKENS

    for node, parent in enumerate(parents):
        path = [node]
        while parent >= 0:
            path.insert(0, parent)
            parent = parents[parent]
        kv = own.kv.clone()
        for depth, ancestor in enumerate(path, start=1):
            kv[slot(before + depth)] = own.kv[slot(before + 1 + ancestor)]
        alone = Batch([(before + len(path), 1, ())], kv, own.table, [own.q[0][node + 1 : node + 2]])
        assert torch.equal(alone.attend([0], window)[0][0], together[node + 1])


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.0, -1.0, 1.0, 3.0])])
def test_large_trees_go_to_torch_beside_the_loop(sinks: Tensor | None) -> None:
    own = batch([(0, 70, ()), (30, 1, ()), (60, 4, (-1, 0, 0)), (0, 65, tuple(range(-1, 63)))])
    own.kv.nan_to_num_(0.0)  # torch reads whole pages
    own.sinks = sinks
    plan = own.plan(list(range(4)), None)
    assert plan.looped is not None and plan.looped.sequences[3].tolist() == [4, 4, 4, 3, 2]
    assert sum(group.count for group in plan.longer) == 1
    check_values = own.attend(list(range(4)), None)
    for found, want in zip(check_values, expected(own, list(range(4)), None), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *LARGEST])
def test_a_prompt_has_the_same_bits_in_any_chunks(dtype: torch.dtype, window: int | None) -> None:
    own = batch([(3, 100, ())], dtype, (6, 2, 32))
    (whole,) = own.attend([0], window)
    for size in (1, 7, 17, 33, 64):
        for begin in range(0, 100, size):
            queries = own.q[0][begin : begin + size]
            part = Batch([(3 + begin, len(queries), ())], own.kv, own.table, [queries])
            assert torch.equal(part.attend([0], window)[0], whole[begin : begin + size])


def test_large_scores_neither_overflow_nor_vanish() -> None:
    own = batch([(60, 1, ()), (60, 3, ())])
    for q in own.q:
        q *= 1000
    check(own, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_sequence_that_is_not_finite_harms_no_other(value: float) -> None:
    own = batch([(20, 1, ()), (20, 1, ()), (20, 2, ())])
    before = own.attend([0, 1, 2], None)
    own.q[1][:, 1] = value
    after = own.attend([0, 1, 2], None)
    assert torch.equal(before[0], after[0]) and torch.equal(before[2], after[2])
    assert after[1].view(4, 16)[1].isnan().all() and torch.equal(
        after[1].view(4, 16)[[0, 2, 3]], before[1].view(4, 16)[[0, 2, 3]]
    )


def test_keys_that_are_not_finite_harm_who_sees_them() -> None:
    """They neither vanish from a softmax nor reach queries before them."""
    own = batch([(20, 4, ())], heads=(2, 1, 16))
    (before,) = own.attend([0], None)
    own.kv[own.table[0][1], 21 - PAGE_TOKENS, 0] = float("nan")
    (after,) = own.attend([0], None)
    assert torch.equal(after[0], before[0]) and after[1:].isnan().all()


@pytest.mark.parametrize("before", [0, 5, 15, 16])
def test_the_largest_trees(before: int) -> None:
    """The last bit of an int64 is its sign."""
    check(batch([(before, 64, tuple(range(-1, 62))), (before, 64, (-1,) * 63)]), None)


def test_queries_among_other_columns() -> None:
    """Heads of a wider tensor, as attention passes them, and ones that are not side by side."""
    own = batch([(20, 1, ()), (33, 2, ())], heads=(4, 2, 16))
    plan, q = own.plan([0, 1], None), torch.cat(own.q)
    want = paged_attention(q, own.kv, plan)
    wide = torch.randn(3, 8, 16)
    wide[:, :4] = q
    assert torch.equal(paged_attention(wide[:, :4], own.kv, plan), want)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(paged_attention(turned, own.kv, plan), want)


@pytest.mark.parametrize(
    ("q", "kv", "is_supported"),
    [
        (torch.float32, torch.float32, True),
        (torch.float32, torch.bfloat16, True),
        (torch.float32, torch.int8, True),
        (torch.float32, torch.float8_e4m3fn, bool(get_host_cpu_features().get("f16c"))),
        (torch.float32, torch.float16, False),
        (torch.float16, torch.float16, False),
        (torch.bfloat16, torch.bfloat16, False),
    ],
)
def test_which_types(q: torch.dtype, kv: torch.dtype, *, is_supported: bool) -> None:
    pages = torch.zeros(2, 16, 2, 2, stored_width(8, kv), dtype=kv)
    assert in_place.is_supported(torch.zeros(1, 2, 8, dtype=q), pages) is is_supported
    plan = planned([1], [3], torch.tensor([[1]]), (None,), q).by_window[None]
    assert not paged_attention(torch.zeros(1, 2, 8, dtype=q), pages, plan).any()


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.bfloat16, 7), (torch.int8, 6), (torch.int8, 7)])
def test_heads_of_broken_words_go_to_torch(dtype: torch.dtype, head_dim: int) -> None:
    own = batch([(31, 1, ())], dtype, (2, 1, head_dim))
    torch.testing.assert_close(own.attend([0], None)[0], expected(own, [0], None)[0])


@pytest.mark.parametrize("dtype", LARGEST)
def test_every_number_of_8_bits_is_read_exactly(dtype: torch.dtype) -> None:
    """A token that sees itself alone gets its own value: every code, at every place of a vector."""
    codes = torch.arange(-128, 128, dtype=torch.int8)
    codes = codes.where(~codes.view(dtype).float().isnan(), 0).view(dtype)
    stored = quantise(torch.randn(2, 16, 2, 1, len(codes)), dtype)
    for slot in range(16):
        stored[:, slot, 1, 0, : len(codes)] = codes.roll(slot)
    table = torch.ones(16, 1, dtype=torch.int64)
    plan = planned([1] * 16, list(range(1, 17)), table, (1,), torch.float32).by_window[1]
    found = paged_attention(torch.randn(16, 1, len(codes)), stored, plan)
    assert torch.equal(found, dequantise(stored[1, :, 1, 0], len(codes), torch.float32))


def test_float8_goes_to_torch_where_processors_convert_no_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", lambda: {"f16c": False})
    try:
        found = [*importlib.reload(in_place)._LOOPS]
    finally:
        monkeypatch.undo()
        importlib.reload(in_place)
    assert found == [torch.float32, torch.bfloat16, torch.int8]
