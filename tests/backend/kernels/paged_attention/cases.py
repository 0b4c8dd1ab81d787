"""Paged attention in Triton: ragged batches, splits, windows, trees and chunks; NaN in all other slots."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from backend.engine.graph_buffers import StaticStep, key_of
from backend.kernels.paged_attention import WindowPlan, kernel, sink_attention
from backend.kernels.quantised_kv import LARGEST, dequantise, quantise, stored_width
from backend.layers.step_input import StepInput
from backend.types import tree_depths
from tests.backend.kernels.cases import COMPILED, Cases, Launch, Value
from tests.backend.kernels.paged_attention.planned import planned

Lengths = list[tuple[int, int]]  # (query tokens, context tokens) of each sequence


@dataclass(frozen=True)
class Batch:
    """Sequences over scattered pages."""

    lengths: Lengths
    heads: tuple[int, int, int] = (8, 2, 64)  # of queries and of keys, and their size
    trees: dict[int, tuple[int, ...]] | None = None  # parents of all tokens but the first, by sequence
    window: int | None = None


def seen(batch: Batch, index: int) -> Tensor:
    """[queries, context]: what each query token of a sequence sees."""
    count, context = batch.lengths[index]
    before = context - count
    found = torch.arange(context) <= before + torch.arange(count)[:, None]
    ages = torch.arange(context)
    positions = before + torch.arange(count)
    parents = (batch.trees or {}).get(index)
    if parents is not None:
        for node, parent in enumerate(parents, start=1):
            found[node, before:] = found[parent + 1, before:]
            found[node, before + node] = True
        positions = before + torch.tensor([0, *tree_depths(parents)])
        ages[before:] = positions
    if batch.window is not None:
        found &= ages > positions[:, None] - batch.window
    return found


def attended(batch: Batch, q: Tensor, kv: Tensor, table: Tensor) -> Tensor:
    """What the kernel computes."""
    query_lens, context_lens = zip(*batch.lengths, strict=True)
    plan = planned(query_lens, context_lens, table, [batch.window], q.dtype, batch.trees)
    own = plan.by_window[batch.window]
    assert isinstance(own, WindowPlan)
    step = replace(own.step.on_device, page_table=own.step.page_table.to(torch.int32))
    return kernel.paged_attention(q, kv, step, own.window)


def softmax_attention(batch: Batch, index: int, q: Tensor, own: Tensor) -> Tensor:
    """A sequence's queries [n, Hq, D] and its keys and values [L, 2, Hkv, D] in float64 → [n, Hq * D]."""
    keys, values = (each.repeat_interleave(q.shape[1] // own.shape[2], 1) for each in own.double().unbind(1))
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) / q.shape[2] ** 0.5
    weights = scores.masked_fill(~seen(batch, index), float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(len(q), -1)


def made(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, pages, a page table, and softmax attention of each sequence in float64."""
    num_heads, num_kv_heads, head_dim = batch.heads
    needed = [-(-context // 16) for _, context in batch.lengths]
    order, table = torch.randperm(sum(needed) + 3), torch.full((len(needed), max(needed) + 1), -(1 << 20))
    kv = torch.full((len(order), 16, 2, num_kv_heads, head_dim), float("nan"))
    count = sum(queries for queries, _ in batch.lengths)
    q = torch.randn(count, num_heads + 2, head_dim).to(dtype)[:, :num_heads]
    expected, begin, taken = [], 0, 0
    for index, (queries, context) in enumerate(batch.lengths):
        pages = order[taken : taken + needed[index]]
        table[index, : needed[index]] = pages
        own = torch.randn(context, 2, num_kv_heads, head_dim).to(dtype)
        slots = kv[pages].flatten(0, 1)
        slots[:context] = own.float()
        kv[pages] = slots.view(-1, 16, 2, num_kv_heads, head_dim)
        expected.append(softmax_attention(batch, index, q[begin : begin + queries], own))
        if batch.window is not None:  # pages that no query sees may be another sequence's by now
            kv[pages[: max(0, context - queries + 1 - batch.window) // 16]] = float("nan")
        begin, taken = begin + queries, taken + needed[index]
    return q.to(device), kv.to(dtype).to(device), table.to(device), torch.cat(expected)


def in_8_bits(batch: Batch, stored: torch.dtype, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Pages of 8 bits: what those give whose numbers are the same in q's dtype. NaN in all other slots."""
    q, kv, table, _ = made(batch, dtype, device)
    pages = quantise(kv.double().float(), stored)
    same = dequantise(pages, batch.heads[2], torch.float32).double()
    found, exact, begin = attended(batch, q, pages, table), [], 0
    for index, (queries, context) in enumerate(batch.lengths):
        own = same[table[index, : -(-context // 16)].long()].flatten(0, 1)[:context].nan_to_num()
        exact.append(softmax_attention(batch, index, q[begin : begin + queries], own))
        begin += queries
    return found.cpu(), torch.cat(exact)


def value(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The result and softmax attention of each sequence in float64."""
    *inputs, exact = made(batch, dtype, device)
    return attended(batch, *inputs).cpu(), exact


def with_sinks(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Sinks, which take their share of the exact softmax as well."""
    q, kv, table, _ = made(replace(batch, window=None), dtype, device)
    (queries, context), (num_heads, num_kv_heads, head_dim) = batch.lengths[0], batch.heads
    plan = planned([queries], [context], table, [batch.window], dtype).by_window[batch.window]
    assert isinstance(plan, WindowPlan)
    on_device = replace(plan.step.on_device, page_table=plan.step.page_table.to(torch.int32))
    plan = replace(plan, step=replace(plan.step, on_device=on_device))
    sinks = torch.randn(num_heads).to(device) * 2
    found = sink_attention(q, kv, plan, sinks)
    pages = table[0, : -(-context // 16)].long()
    own = kv[pages].flatten(0, 1)[:context].double().repeat_interleave(num_heads // num_kv_heads, 2)
    scores = torch.einsum("qhd,khd->hqk", q.double(), own[:, 0]) / head_dim**0.5
    scores = scores.masked_fill(~seen(batch, 0).to(device), float("-inf"))
    column = sinks.double()[:, None, None].expand(-1, queries, 1)
    weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
    return found.cpu(), torch.einsum("hqk,khd->qhd", weights, own[:, 1]).reshape(queries, -1).cpu()


def in_company(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The same, if each sequence has the same bits alone."""
    q, kv, table, exact = made(batch, dtype, device)
    together, begin = attended(batch, q, kv, table), 0
    for index, (count, context) in enumerate(batch.lengths):
        tree = (batch.trees or {}).get(index)
        own = replace(batch, lengths=[(count, context)], trees=None if tree is None else {0: tree})
        alone = attended(own, q[begin : begin + count], kv, table[index : index + 1])
        assert torch.equal(alone, together[begin : begin + count]), f"sequence {index} of {batch.lengths}"
        begin += count
    return together.cpu(), exact


def replayed(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The result from a graph's buffers, in which padding and empty sequences follow."""
    q, kv, table, exact = made(batch, dtype, device)
    query_lens, context_lens = (list(each) for each in zip(*batch.lengths, strict=True))
    plan = planned(query_lens, context_lens, table, [batch.window], dtype).by_window[batch.window]
    assert isinstance(plan, WindowPlan)
    own = replace(plan.step.on_device, page_table=plan.step.page_table.to(torch.int32))
    nothing = torch.zeros(len(q), dtype=torch.int32, device=device)
    step = StepInput(nothing, nothing.long(), own, query_lens, context_lens, list(plan.step.rows))
    key = key_of(step, longest=1 << 20)
    assert key is not None and key.num_tokens > len(q) and key.num_sequences > len(query_lens)
    static = StaticStep(key, own.page_table, (0, 0))
    static.fill(step)
    q = torch.cat((q, q[: key.num_tokens - len(q)]))
    found = kernel.paged_attention(q, kv, static.step_input.on_device, batch.window)
    return found[: len(exact)].cpu(), exact


def sums(batch: Batch, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """The log2 of each row's sum of powers, in q's dtype for the check."""
    num_heads, num_kv_heads, head_dim = batch.heads
    (count, context), pages = batch.lengths[0], -(-batch.lengths[0][1] // 16)
    q, kv = torch.randn(count, num_heads, head_dim), torch.randn(pages, 16, 2, num_kv_heads, head_dim)
    q, kv = q.to(dtype).to(device), kv.to(dtype).to(device)
    own = planned([count], [context], torch.arange(pages).to(device)[None], [None], dtype).by_window[None]
    assert isinstance(own, WindowPlan)
    found = torch.full((count, num_heads), float("nan"), device=device)
    kernel.paged_attention(q, kv, own.step.on_device, None, found)
    keys = kv.flatten(0, 1)[:context, 0].double().repeat_interleave(num_heads // num_kv_heads, 1)
    scores = torch.einsum("qhd,khd->qhk", q.double(), keys) / head_dim**0.5
    scores = scores.masked_fill(~seen(batch, 0)[:, None].to(device), float("-inf"))
    return found.to(dtype), scores.logsumexp(-1) / math.log(2)


def launched(
    queries: int,
    context: int,
    has_trees: bool,
    window: int | None,
    dtype: torch.dtype,
    stored: torch.dtype | None = None,
) -> Tensor:
    """Qwen3-8B's heads; keys and values are `stored` as q's dtype, or in 8 bits."""
    batch = Batch(
        [(queries, context)] * 2,
        trees={0: tuple(range(-1, queries - 2))} if has_trees else None,
        window=window,
    )
    q, kept = torch.zeros(2 * queries, 32, 128, dtype=dtype), stored or dtype
    kv = torch.zeros(4, 16, 2, 8, stored_width(128, kept), dtype=kept)
    return attended(batch, q, kv, torch.zeros(2, 8192, dtype=torch.int64))


TREES = {0: (-1, -1, 0, 0, 2), 1: (-1, -1, 1)}
BATCHES = {
    "decode": Batch([(1, 1), (1, 17), (1, 250), (1, 64)]),
    "heads of 80, groups of 3": Batch([(1, 40), (5, 33)], heads=(6, 2, 80)),
    "one head for each query": Batch([(1, 40), (7, 7)], heads=(3, 3, 32)),
    "splits": Batch([(1, 1100), (1, 5), (2, 520)], heads=(2, 1, 32)),
    "window": Batch([(1, 100), (5, 60), (1, 3)], window=24),
    "window over splits": Batch([(1, 1100), (1, 90)], heads=(2, 1, 32), window=40),
    "trees": Batch([(6, 40), (4, 70)], trees=TREES),
    "tree beside chains": Batch([(6, 40), (3, 70), (70, 80)], heads=(2, 1, 32), trees={0: TREES[0]}),
    "tree in a window": Batch([(6, 40), (4, 4)], trees=TREES, window=7),
    "a tree of 64": Batch([(64, 70)], heads=(2, 1, 32), trees={0: tuple((n - 1) // 2 for n in range(63))}),
    "prefill and chunk": Batch([(33, 33), (17, 50), (1, 9)]),
}
IN_8_BITS = [
    *("decode", "heads of 80, groups of 3", "one head for each query", "splits", "window"),
    *("window over splits", "trees", "tree beside chains", "tree in a window", "prefill and chunk"),
]
EIGHT_BIT_LAUNCHES = {
    "decode": (1, 4096, False),
    "verify a tree": (8, 4096, True),
    "prefill": (512, 512, False),
}
VERIFIED = Batch([(1, 20), (3, 37), (6, 600), (1, 17)], heads=(4, 2, 32))
COMPANY = Batch(
    [(1, 600), (40, 50), (6, 40), (3, 1100), (12, 30), (1, 33)], heads=(2, 1, 32), trees={2: TREES[0]}
)
CASES = Cases(
    [
        *(Value(name, partial(value, batch)) for name, batch in BATCHES.items()),
        *(
            Value(
                f"alone and in company, window {window}", partial(in_company, replace(COMPANY, window=window))
            )
            for window in (None, 24)
        ),
        *(
            Value(
                f"{name} in {str(stored).removeprefix('torch.')}", partial(in_8_bits, BATCHES[name], stored)
            )
            for name in IN_8_BITS
            for stored in LARGEST
        ),
        Value("in a graph's buffers", partial(replayed, VERIFIED)),
        Value("in a graph's buffers in a window", partial(replayed, replace(VERIFIED, window=24))),
        Value("sinks", partial(with_sinks, Batch([(3, 70)], heads=(4, 2, 32)))),
        Value("sinks in a window over splits", partial(with_sinks, Batch([(2, 1100)], (2, 1, 32), None, 40))),
        Value("log of sums", partial(sums, Batch([(3, 70)], heads=(2, 1, 32)))),
        Value("log of sums of splits", partial(sums, Batch([(2, 600)], heads=(2, 1, 32)))),
    ],
    [
        Launch("decode", partial(launched, 1, 4096, False, None), ["_attend"], dtypes=COMPILED),
        Launch("decode in a window", partial(launched, 1, 4096, False, 1024), ["_attend"]),
        Launch("verify a tree", partial(launched, 8, 4096, True, None), ["_attend"]),
        Launch("prefill", partial(launched, 512, 512, False, None), ["_attend"], is_large=True),
        *(
            Launch(
                f"{name} in {str(stored).removeprefix('torch.')}",
                partial(launched, *shape, None, stored=stored),
                ["_attend"],
                narrow=["_attend"],
                is_large=name == "prefill",
            )
            for name, shape in EIGHT_BIT_LAUNCHES.items()
            for stored in LARGEST
        ),
    ],
)
