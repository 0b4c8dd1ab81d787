"""Paged attention in Triton: prefill, chunks, decode and verification of trees in one kernel.

A program takes BLOCK_ROWS rows of one sequence, which are query tokens times the query heads that share a
key head, and one split of its keys (split KV, as Flash-Decoding). Sequences are launched by class, which
follows from query tokens: tiles and splits, and so a sequence's bits, depend on its own query tokens and
context alone. Softmax as Milakov and Gimelshein (2018), in powers of two; sums in float32. Keys and values
of 8 bits are widened in registers; scores are multiplied by the keys' scales, values by their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks
from backend.kernels.paged_attention.plan import DeviceStep
from backend.kernels.quantised_kv import LARGEST

_SPLIT_KEYS, _MOST_SPLITS = 512, 32
_LOG2_E = 1.4426950408889634
_SCALE_UNITS = {torch.int8: 1, torch.float8_e4m3fn: 256}
_SHAPES = {"few": 16, "some": 64, "rows": 1 << 30}
"""Shape classes of blocks.json, each with the most rows that a key head of one of its sequences has."""


def paged_attention(
    q: Tensor, kv: Tensor, step: DeviceStep, window: int | None, log_sums: Tensor | None = None
) -> Tensor:
    """q [T, Hq, D], kv [pages, 16, 2, Hkv, W] → [T, Hq * D] in q.dtype.

    `log_sums` [T, Hq] float32 gets log2 of each row's sum of powers. Keys and values have q's dtype and
    width D, or 8 bits as quantised_kv.py stores them.
    """
    is_scaled = kv.dtype in LARGEST
    assert kv.is_contiguous() and (is_scaled or kv.dtype is q.dtype)
    assert q.stride(2) == 1 and q.stride(1) == q.shape[2]
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, group = kv.shape[3], num_heads // kv.shape[3]
    num_splits = min(_MOST_SPLITS, triton.cdiv(step.longest_context, _SPLIT_KEYS))
    result = torch.empty(num_tokens, num_heads * head_dim, dtype=q.dtype, device=q.device)
    parts, tops_sums = result, result
    if num_splits > 1:
        parts, tops_sums = (
            torch.empty(num_splits, num_tokens * num_heads, width, dtype=torch.float32, device=q.device)
            for width in (head_dim, 2)
        )
    outputs = result, parts, tops_sums, log_sums
    # Bytes of float8 are widened from bits: GPUs before the H100's generation do not know them.
    stored = kv.view(torch.uint8) if kv.dtype is torch.float8_e4m3fn else kv
    memory = stored, kv.view(torch.bfloat16) if is_scaled else None
    constants = {
        "NUM_KV_HEADS": num_kv_heads,
        "GROUP": group,
        "HAS_WINDOW": window is not None,
        "HEAD_DIM": head_dim,
        "WIDTH": kv.shape[4],
        "SCALE_UNIT": _SCALE_UNITS.get(kv.dtype, 0),
        "BLOCK_DIM": triton.next_power_of_2(head_dim),
        "HAS_LOG_SUMS": log_sums is not None,
        "IS_SPLIT": num_splits > 1,
        "SPLIT_KEYS": _SPLIT_KEYS,
        "MOST_SPLITS": _MOST_SPLITS,
    }
    for own in _classes(step, group):
        options, queries = _options(own.shape, group, torch.int8 if is_scaled else q.dtype)
        per_sequence = triton.cdiv(own.most_queries, queries)
        _attend[own.num_sequences * per_sequence, num_kv_heads, num_splits](
            *outputs,
            *(q, *memory, step.page_table, step.order, step.rows, step.query_starts, step.context_lens),
            *(step.positions, step.ancestors, head_dim**-0.5 * _LOG2_E, q.stride(0)),
            *(step.page_table.stride(0), num_tokens * num_heads, window or 0, own.begin, per_sequence),
            QUERIES=queries,
            HAS_TREES=own.has_trees,
            **constants,
            **options,
        )
    if num_splits > 1:
        dims = _MOST_SPLITS, head_dim, constants["BLOCK_DIM"]
        _add_splits[num_tokens * num_heads,](
            *outputs, num_tokens * num_heads, num_splits, *dims, log_sums is not None
        )
    return result


class _Class(NamedTuple):
    """Sequences of a step that are launched together."""

    shape: str  # in blocks.json
    has_trees: bool
    begin: int  # among DeviceStep.order
    num_sequences: int
    most_queries: int


def _classes(step: DeviceStep, group: int) -> Iterator[_Class]:
    """The classes that occur in a step; `group` rows share a key head for each query token."""
    start = 0
    for lens in (step.chain_lens, step.tree_lens):
        begin = 0
        for shape, most_rows in _SHAPES.items():
            end = bisect_right(lens, most_rows // group)
            if end > begin:
                has_trees = lens is step.tree_lens
                yield _Class(shape, has_trees, start + begin, end - begin, lens[end - 1])
            begin = end
        start = len(lens)


def _options(shape: str, group: int, dtype: torch.dtype) -> tuple[dict[str, int], int]:
    """How a class is launched, and how many query tokens a program takes."""
    options = blocks("paged_attention", shape, dtype).options()
    queries = max(1, options["BLOCK_ROWS"] // group)
    return options | {"BLOCK_ROWS": max(options["BLOCK_ROWS"], triton.next_power_of_2(group))}, queries


@triton.jit(do_not_specialize=["num_rows", "window", "first_sequence", "per_sequence"])
def _attend(
    result,
    parts,
    tops_sums,
    log_sums,
    q,
    kv,
    scales,
    page_table,
    order,
    table_rows,
    query_starts,
    context_lens,
    positions,
    ancestors,
    scale,
    q_stride,
    table_stride,
    num_rows,
    window,
    first_sequence,
    per_sequence,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_TREES: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    SCALE_UNIT: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_LOG_SUMS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    SPLIT_KEYS: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """One split of the keys of QUERIES query tokens and one key head.

    Grid (sequences * per_sequence, NUM_KV_HEADS, splits), of `order` from first_sequence on. Arguments as in
    paged_attention and DeviceStep; parts [splits, num_rows, D] and tops_sums [splits, num_rows, 2] float32
    where IS_SPLIT; num_rows: T * Hq. A split without keys has the top -inf. `scales`: kv's bytes as bfloat16,
    of which the last of a head's WIDTH bytes are its scale, in SCALE_UNIT; 0: none.
    """
    sequence = tl.load(order + first_sequence + tl.program_id(0) // per_sequence)
    head, split = tl.program_id(1), tl.program_id(2)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    first = (tl.program_id(0) % per_sequence) * QUERIES
    if first >= count:
        return
    context = tl.load(context_lens + sequence)
    before = context - count  # keys that are older than the step
    m = tl.arange(0, BLOCK_ROWS)
    query = first + m // GROUP
    is_row = (query < count) & (m < QUERIES * GROUP)
    token = (start + query).to(tl.int64)
    d = tl.arange(0, BLOCK_DIM)
    is_dim = d < HEAD_DIM
    query_head = head * GROUP + m % GROUP
    q_place = token[:, None] * q_stride + query_head[:, None] * HEAD_DIM + d[None, :]
    queries = tl.load(q + q_place, mask=is_row[:, None] & is_dim[None, :], other=0.0)
    newest = before + query  # the newest key that each row sees, of a chain
    oldest = tl.zeros((BLOCK_ROWS,), tl.int32) - 1
    end = tl.minimum(before + first + QUERIES, context)
    if HAS_TREES:
        end = context
        low = tl.load(ancestors + token * 2, mask=is_row, other=0)
        high = tl.load(ancestors + token * 2 + 1, mask=is_row, other=0)
        is_tree = (low | high) != 0
    begin = 0
    if HAS_WINDOW:
        oldest = tl.load(positions + token, mask=is_row, other=0) - window
        # From the first page that is seen: those before it may be another sequence's by now.
        begin = tl.maximum(tl.min(tl.where(is_row, oldest, context), 0) + 1, 0) // 16 * 16
    # Splits are of a sequence's whole context, so that they are the same for each of its programs.
    split_keys = tl.cdiv(tl.cdiv(context, MOST_SPLITS), SPLIT_KEYS) * SPLIT_KEYS
    begin = tl.maximum(begin, split * split_keys)
    end = tl.minimum(end, (split + 1) * split_keys)
    top = tl.full((BLOCK_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_ROWS,), tl.float32)
    sums = tl.zeros((BLOCK_ROWS, BLOCK_DIM), tl.float32)
    pages = page_table + tl.load(table_rows + sequence).to(tl.int64) * table_stride
    for key_begin in range(begin, end, BLOCK_KEYS):
        key = key_begin + tl.arange(0, BLOCK_KEYS)
        is_key = key < end
        page = tl.load(pages + key // 16, mask=is_key, other=0).to(tl.int64)
        slot = ((page * 16 + key % 16) * (2 * NUM_KV_HEADS) + head) * WIDTH
        k_mask = is_key[None, :] & is_dim[:, None]
        keys = tl.load(kv + slot[None, :] + d[:, None], mask=k_mask, other=0.0)
        scores = tl.dot(queries, widened(keys, queries.dtype), input_precision="ieee") * scale
        scores = _scaled(scores, scales, slot, is_key, 0, WIDTH, SCALE_UNIT)
        seen = key[None, :] <= newest[:, None]
        age = key
        if HAS_TREES:
            node = key - before
            word = tl.where((node < 32)[None, :], low[:, None], high[:, None])
            is_ancestor = ((word >> (node & 31)[None, :]) & 1) != 0
            in_tree = (node < 0)[None, :] | (is_ancestor & (node < 64)[None, :])
            seen = tl.where(is_tree[:, None], in_tree, seen)
            if HAS_WINDOW:
                own = is_key & (node >= 0)
                age = tl.where(own, tl.load(positions + start + node, mask=own, other=0), key)
        if HAS_WINDOW:
            seen = seen & (age[None, :] > oldest[:, None])
        scores = tl.where(seen & is_key[None, :], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, 1))
        finite = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - finite[:, None])
        factor = tl.exp2(top - finite)
        total = total * factor + tl.sum(weights, 1)
        v_mask = is_key[:, None] & is_dim[None, :]
        slot += NUM_KV_HEADS * WIDTH
        values = widened(tl.load(kv + slot[:, None] + d[None, :], mask=v_mask, other=0.0), queries.dtype)
        values = _scaled(values, scales, slot, is_key, 1, WIDTH, SCALE_UNIT).to(queries.dtype)
        sums = sums * factor[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        top = highest
    row = token * (NUM_KV_HEADS * GROUP) + query_head
    mask = is_row[:, None] & is_dim[None, :]
    if IS_SPLIT:
        part = split.to(tl.int64) * num_rows + row
        tl.store(parts + part[:, None] * HEAD_DIM + d[None, :], sums, mask=mask)
        tl.store(tops_sums + part * 2, top, mask=is_row)
        tl.store(tops_sums + part * 2 + 1, total, mask=is_row)
    else:
        found = (sums / total[:, None]).to(result.dtype.element_ty)
        tl.store(result + row[:, None] * HEAD_DIM + d[None, :], found, mask=mask)
        if HAS_LOG_SUMS:
            tl.store(log_sums + row, top + tl.log2(total), mask=is_row)


@triton.jit
def widened(x, kind: tl.constexpr):
    """Numbers as `kind`, by way of float32. Bytes are those of float8_e4m3fn, and the results 1/256 of these.

    Float16 has the same bits with exponents of a larger bias.
    """
    if x.dtype == tl.uint8:
        bits = x.to(tl.int16)
        x = (((bits & 128) << 8) | ((bits & 127) << 7)).to(tl.float16, bitcast=True)
    return x.to(tl.float32).to(kind)


@triton.jit
def _scaled(x, scales, slot, is_key, AXIS: tl.constexpr, WIDTH: tl.constexpr, SCALE_UNIT: tl.constexpr):
    """x times the scales of the heads that begin at `slot` [keys], along its other axis than AXIS."""
    if SCALE_UNIT:
        own = tl.load(scales + (slot + WIDTH) // 2 - 1, mask=is_key, other=0.0).to(tl.float32)
        x = x.to(tl.float32) * tl.expand_dims(own * SCALE_UNIT, AXIS)
    return x


@triton.jit
def _add_splits(
    result,
    parts,
    tops_sums,
    log_sums,
    num_rows,
    num_splits,
    MOST_SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_LOG_SUMS: tl.constexpr,
):
    """The weighted mean of a row's splits, of which those without keys weigh 0. Grid (T * Hq)."""
    row = tl.program_id(0).to(tl.int64)
    split, d = tl.arange(0, MOST_SPLITS), tl.arange(0, BLOCK_DIM)
    is_split = split < num_splits
    part = split * num_rows + row
    tops = tl.load(tops_sums + part * 2, mask=is_split, other=float("-inf"))
    totals = tl.load(tops_sums + part * 2 + 1, mask=is_split, other=0.0)
    top = tl.max(tops, 0)
    weights = tl.exp2(tops - top)
    total = tl.sum(weights * totals, 0)
    mask = is_split[:, None] & (d < HEAD_DIM)[None, :]
    own = tl.load(parts + part[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)
    sums = tl.sum(own * weights[:, None], 0)
    tl.store(result + row * HEAD_DIM + d, (sums / total).to(result.dtype.element_ty), mask=d < HEAD_DIM)
    if HAS_LOG_SUMS:
        tl.store(log_sums + row, top + tl.log2(total))
