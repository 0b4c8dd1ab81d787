"""Experts in Triton: pairs of a token and one of its experts, sorted by expert, and grouped products of them.

A pair is numbered t · k + its place among the token's k experts. The grids follow from the numbers of tokens
and experts alone: there is a program for every piece that the worst choice of experts would need, and those
that have nothing to do end at once. So the host never waits to learn what was chosen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks
from backend.kernels.linear.kernel import byte_unit, widened

Scales = tuple[Tensor, tuple[int, int]]
"""The scales of matrices of 8 bits [E, ceil(N / rows), ceil(K / columns)], and the block (rows, columns)."""

_FEW_ROWS = 16
"""Up to this many pairs per expert, on average, an expert's weights are read for one small block of rows."""

_BLOCK_PAIRS, _BLOCK_COLUMNS = 1024, 1024


def run_experts(
    x: Tensor,
    chosen: Tensor,
    shares: Tensor,
    weights: tuple[Tensor, Tensor],
    scales: tuple[Scales | None, Scales | None] = (None, None),
) -> Tensor:
    """y[t] = Σ_k shares[t, k] · expert[chosen[t, k]](x[t]), added in the order of k.

    x [T, D]; chosen [T, k] int64; shares [T, k] float32; weights: gate_up [E, 2 I, D] and down [E, D, I],
    with `scales` where they have 8 bits → [T, D].
    """
    (gate_up, down), (wide, narrow) = weights, scales
    pairs = sort_pairs(chosen, len(down))
    gated = multiply(x, gate_up, pairs, chosen.shape[1], scales=wide, is_gated=True)
    return add_parts(multiply(gated, down, pairs, 1, scales=narrow), shares)


def choose_experts(logits: Tensor, top_k: int, *, normalise: bool) -> tuple[Tensor, Tensor]:
    """Shares [T, k] and experts [T, k] int64 of the router's logits [T, E], the largest first."""
    num_tokens, num_experts = logits.shape
    shares = torch.empty(num_tokens, top_k, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(num_tokens, top_k, dtype=torch.int64, device=logits.device)
    sizes = {"BLOCK": triton.next_power_of_2(num_experts), "BLOCK_K": triton.next_power_of_2(top_k)}
    if num_tokens:
        _choose[num_tokens,](shares, chosen, logits, num_experts, TOP_K=top_k, NORMALISE=normalise, **sizes)
    return shares, chosen


def sort_pairs(chosen: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """The pairs by expert [T k] int32, and where each expert's end among them [E] int32."""
    order = torch.empty(chosen.numel(), dtype=torch.int32, device=chosen.device)
    ends = torch.empty(num_experts, dtype=torch.int32, device=chosen.device)
    _sort[num_experts,](chosen, order, ends, len(order), num_experts, BLOCK=_BLOCK_PAIRS)
    return order, ends


def multiply(
    x: Tensor,
    weights: Tensor,
    pairs: tuple[Tensor, Tensor],
    per_row: int,
    *,
    scales: Scales | None = None,
    is_gated: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Each pair's row of `x` times its expert's matrix, [T k, N].

    x [T k / per_row, K]: a row has `per_row` pairs; weights [E, N, K], or where the first half of an expert's
    rows gates the second one [E, 2 N, K]. Those of 8 bits, int8 or the bytes of float8_e4m3fn, have `scales`,
    as in linear/kernel.py. The result has the weights' dtype, with scales that of x, or `dtype`.
    """
    order, ends = pairs
    num_experts, rows, features = weights.shape
    assert x.is_contiguous() and weights.is_contiguous() and x.shape[1] == features
    columns = rows // 2 if is_gated else rows
    kind = weights.dtype if scales is None else x.dtype
    y = torch.empty(len(order), columns, dtype=dtype or kind, device=x.device)
    if y.numel() == 0:
        return y
    amount = "few" if len(order) <= _FEW_ROWS * num_experts else "many"
    shape = amount + " bytes" * (scales is not None) + " gated" * is_gated
    options = blocks("experts", shape, kind).options()
    grid = triton.cdiv(columns, options["BLOCK_N"]), _most_pieces(len(order), num_experts, options["BLOCK_M"])
    constants = {
        "PER_ROW": per_row,
        "IS_GATED": is_gated,
        "BYTE_UNIT": 0 if scales is None else byte_unit(weights.dtype),
        "BLOCK_EXPERTS": triton.next_power_of_2(num_experts),
    }
    own_scales, (height, width) = scales or (x, (1, features))
    assert width >= features or width % options["BLOCK_K"] == 0
    sizes = num_experts, columns, features, height, width, *own_scales.shape[-2:]
    _multiply[grid](y, x, weights, own_scales, order, ends, *sizes, **constants, **options)
    return y


def add_parts(parts: Tensor, shares: Tensor) -> Tensor:
    """y[t] = Σ_k shares[t, k] · parts[t, k], in the order of k: parts [T k, D], shares [T, k] → [T, D]."""
    (num_tokens, top_k), size = shares.shape, parts.shape[1]
    y = torch.empty(num_tokens, size, dtype=parts.dtype, device=parts.device)
    if y.numel():
        grid = num_tokens, triton.cdiv(size, _BLOCK_COLUMNS)
        _add[grid](y, parts, shares, size, TOP_K=top_k, BLOCK=_BLOCK_COLUMNS)
    return y


def _most_pieces(num_pairs: int, num_experts: int, size: int) -> int:
    """How many pieces of up to `size` pairs there can be, each of one expert."""
    return (num_pairs + min(num_experts, num_pairs) * (size - 1)) // size


@triton.jit
def _choose(
    shares,
    chosen,
    logits,
    num_experts,
    TOP_K: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """The TOP_K largest of softmax(logits[t]), the lowest expert of equal ones first. Grid (T)."""
    token = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, BLOCK), tl.arange(0, BLOCK_K)
    own = tl.load(logits + token * num_experts + expert, mask=expert < num_experts, other=float("-inf"))
    powers = tl.exp(own.to(tl.float32) - tl.max(own, 0).to(tl.float32))
    left = tl.where(expert < num_experts, powers / tl.sum(powers, 0), -1.0)
    found, experts = tl.zeros((BLOCK_K,), tl.float32), tl.zeros((BLOCK_K,), tl.int64)
    for k in tl.static_range(TOP_K):
        best = tl.argmax(left, 0)
        found = tl.where(place == k, tl.max(left, 0), found)
        experts = tl.where(place == k, best, experts)
        left = tl.where(expert == best, -1.0, left)
    if NORMALISE:
        found = found / tl.sum(found, 0)
    tl.store(shares + token * TOP_K + place, found, mask=place < TOP_K)
    tl.store(chosen + token * TOP_K + place, experts, mask=place < TOP_K)


@triton.jit
def _sort(chosen, order, ends, num_pairs, num_experts, BLOCK: tl.constexpr):
    """Write which pairs chose an expert, ascending, and where they end in `order`. Grid (E)."""
    expert = tl.program_id(0)
    end = 0
    for begin in range(0, num_pairs, BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        found = tl.load(chosen + pair, mask=pair < num_pairs, other=num_experts)
        end += tl.sum((found < expert).to(tl.int32), 0)
    for begin in range(0, num_pairs, BLOCK):
        pair = begin + tl.arange(0, BLOCK)
        is_own = tl.load(chosen + pair, mask=pair < num_pairs, other=num_experts) == expert
        place = end + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(order + place, pair, mask=is_own)
        end += tl.sum(is_own.to(tl.int32), 0)
    tl.store(ends + expert, end)


@triton.jit
def _multiply(
    y,
    x,
    weights,
    scales,
    order,
    ends,
    num_experts,
    columns,
    features,
    height,
    width,
    scale_rows,
    groups,
    PER_ROW: tl.constexpr,
    IS_GATED: tl.constexpr,
    BYTE_UNIT: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y[pair] = weights[expert] · x[pair // PER_ROW] of up to BLOCK_M pairs of one expert, BLOCK_N columns.

    Grid (N / BLOCK_N, pieces). Arguments as in multiply; columns: N; features: K. Columns vary fastest, so
    that an expert's next piece finds the weights in the cache. Weights of 8 bits are widened exactly, and the
    sum of each BLOCK_K columns of K is scaled in float32.
    """
    experts = tl.arange(0, BLOCK_EXPERTS)
    own_ends = tl.load(ends + experts, mask=experts < num_experts, other=0)
    own_begins = tl.load(ends + experts - 1, mask=(experts > 0) & (experts < num_experts), other=0)
    pieces = tl.cdiv(own_ends - own_begins, BLOCK_M)
    piece = tl.program_id(1)
    expert = tl.sum((tl.cumsum(pieces, 0) <= piece).to(tl.int32), 0)
    if expert >= num_experts:
        return
    is_before, is_own = experts < expert, experts == expert
    first = tl.sum(tl.where(is_own, own_begins, 0), 0)
    first += (piece - tl.sum(tl.where(is_before, pieces, 0), 0)) * BLOCK_M
    place = first + tl.arange(0, BLOCK_M)
    is_row = place < tl.sum(tl.where(is_own, own_ends, 0), 0)
    pair = tl.load(order + place, mask=is_row, other=0).to(tl.int64)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = n < columns
    k = tl.arange(0, BLOCK_K)
    rows = x + (pair // PER_ROW)[:, None] * features + k[None, :]
    size = columns.to(tl.int64) * features
    gates = weights + expert * size * (2 if IS_GATED else 1) + n[None, :].to(tl.int64) * features + k[:, None]
    gate_scales = scales + (expert * scale_rows + n // height) * groups
    up_scales = scales + (expert * scale_rows + (columns + n) // height) * groups
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    ups = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, features, BLOCK_K):
        is_feature = begin + k < features
        own = tl.load(rows + begin, mask=is_row[:, None] & is_feature[None, :], other=0.0)
        mask = is_column[None, :] & is_feature[:, None]
        group = begin // width
        total = _added(total, own, gates + begin, mask, gate_scales + group, is_column, BYTE_UNIT)
        if IS_GATED:
            ups = _added(ups, own, gates + size + begin, mask, up_scales + group, is_column, BYTE_UNIT)
    if IS_GATED:
        total = total / (1 + tl.exp(-total)) * ups
    target = y + pair[:, None] * columns + n[None, :]
    tl.store(target, total.to(y.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit
def _added(total, own, matrix, mask, scales, is_column, BYTE_UNIT: tl.constexpr):
    """total + own · the matrix at these places [BLOCK_K, BLOCK_N], times the scales at [BLOCK_N]."""
    found = tl.load(matrix, mask=mask, other=0)
    if BYTE_UNIT:
        scale = tl.load(scales, mask=is_column, other=0.0) * BYTE_UNIT
        found = widened(found, own.dtype, BYTE_UNIT)
        total += tl.dot(own, found, input_precision="ieee") * scale[None, :]
    else:
        total = tl.dot(own.to(found.dtype), found, total, input_precision="ieee")
    return total


@triton.jit
def _add(y, parts, shares, size, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """y[t] = Σ_k shares[t, k] · parts[t, k]. Grid (T, size / BLOCK); parts [T, k, size]; y [T, size]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    total = tl.zeros((BLOCK,), tl.float32)
    for pair in tl.static_range(TOP_K):
        share = tl.load(shares + token * TOP_K + pair)
        part = tl.load(parts + (token * TOP_K + pair) * size + column, mask=is_column, other=0.0)
        total += share * part.to(tl.float32)
    tl.store(y + token * size + column, total.to(y.dtype.element_ty), mask=is_column)
