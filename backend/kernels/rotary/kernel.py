"""Norm and rotation of heads in Triton: a program for some heads of one token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks


def rotate(x: Tensor, table: Tensor, positions: Tensor, weight: Tensor | None, eps: float) -> None:
    """Rotate the heads of x [T, H, D] in place, D even; with a `weight` [H, D], normalise them before."""
    num_tokens, num_heads, size = x.shape
    if not x.numel():
        return
    options = blocks("rotary", "heads", x.dtype).options()
    _rotate[num_tokens, triton.cdiv(num_heads, options["HEADS"])](
        *(x, table, positions, weight, eps, x.stride(0), table.shape[1], num_heads),
        SIZE=size,
        BLOCK=triton.next_power_of_2(size // 2),
        HAS_WEIGHT=weight is not None,
        **options,
    )


@triton.jit
def _rotate(
    x,
    table,
    positions,
    weight,
    eps,
    stride,
    table_rows,
    num_heads,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HEADS: tl.constexpr,
):
    """HEADS heads of one token. Grid (T, H / HEADS).

    x [T, H, SIZE], tokens `stride` elements apart; table [2, table_rows, SIZE]; weight [H, SIZE].
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, BLOCK)
    mask = (head < num_heads)[:, None] & (i < SIZE // 2)[None, :]
    place = head[:, None] * SIZE + i[None, :]
    first, second = x + token * stride + place, x + token * stride + place + SIZE // 2
    a = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(second, mask=mask, other=0.0).to(tl.float32)
    position = tl.load(positions + token)
    a, b = turned(a, b, i, table, position, table_rows, weight, place, mask, eps, SIZE, HAS_WEIGHT)
    tl.store(first, a.to(x.dtype.element_ty), mask=mask)
    tl.store(second, b.to(x.dtype.element_ty), mask=mask)


@triton.jit
def turned(
    a,
    b,
    pair,
    table,
    position,
    table_rows,
    weight,
    place,
    mask,
    eps,
    SIZE: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
):
    """The halves a, b of heads [heads, pairs] in float32, normed where HAS_WEIGHT, then rotated.

    `place`: of the first half's weights; `mask`: the pairs that there are, where weights are read.
    """
    if HAS_WEIGHT:
        factor = 1 / tl.sqrt_rn((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / SIZE + eps)
        a *= factor[:, None] * tl.load(weight + place, mask=mask, other=0.0).to(tl.float32)
        b *= factor[:, None] * tl.load(weight + place + SIZE // 2, mask=mask, other=0.0).to(tl.float32)
    cos = table + position.to(tl.int64) * SIZE + pair
    sin = cos + table_rows.to(tl.int64) * SIZE + SIZE // 2
    is_pair = pair < SIZE // 2
    c = tl.load(cos, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    return a * c - b * s, b * c + a * s
