"""Norm, rotation and store in Triton: a program for some heads of one token.

Rows in 8 bits are those of quantised_kv.py, rounded in the same way to the same bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks
from backend.kernels.quantised_kv import LARGEST
from backend.kernels.rotary import Angles
from backend.kernels.rotary.kernel import turned


def kv_write(
    heads: Tensor, angles: Angles, slots: Tensor, memory: Tensor, weight: Tensor | None, eps: float
) -> None:
    """Arguments as the op's; all are contiguous, and D is even."""
    num_tokens, num_heads, size = heads.shape
    if not num_tokens:
        return
    options = blocks("kv_write", "heads", heads.dtype).options()
    # GPUs before the H100's generation do not know float8: its bytes are made of bits.
    stored = memory.view(torch.uint8) if memory.dtype is torch.float8_e4m3fn else memory
    scales = memory.view(torch.bfloat16) if memory.dtype in LARGEST else None
    _kv_write[num_tokens, triton.cdiv(num_heads, options["HEADS"])](
        *(heads, *angles, slots, stored, scales, weight, eps, angles.table.shape[1]),
        NUM_HEADS=num_heads,
        NUM_STORED=memory.shape[1],
        WIDTH=memory.shape[2],
        LARGEST=LARGEST.get(memory.dtype, 0.0),
        SIZE=size,
        BLOCK=triton.next_power_of_2(size // 2),
        HAS_WEIGHT=weight is not None,
        **options,
    )


_LEAST_SCALE = tl.constexpr(torch.finfo(torch.bfloat16).tiny)


@triton.jit
def _kv_write(
    heads,
    table,
    positions,
    slots,
    memory,
    scales,
    weight,
    eps,
    table_rows,
    NUM_HEADS: tl.constexpr,
    NUM_STORED: tl.constexpr,
    WIDTH: tl.constexpr,
    LARGEST: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HEADS: tl.constexpr,
):
    """HEADS heads of one token. Grid (T, NUM_HEADS / HEADS).

    heads [T, NUM_HEADS, SIZE]; table [2, table_rows, SIZE]; slots [T]; memory [S, NUM_STORED, WIDTH] and,
    unless LARGEST is 0, `scales`, its bytes as bfloat16. The last NUM_STORED heads are stored; the last half
    of them, the values, is neither normed nor rotated.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, BLOCK)
    mask = (head < NUM_HEADS)[:, None] & (i < SIZE // 2)[None, :]
    place = head[:, None] * SIZE + i[None, :]
    own = heads + token * (NUM_HEADS * SIZE) + place
    a = tl.load(own, mask=mask, other=0.0)
    b = tl.load(own + SIZE // 2, mask=mask, other=0.0)
    is_value = (head >= NUM_HEADS - NUM_STORED // 2)[:, None]
    x, y = turned(
        *(a.to(tl.float32), b.to(tl.float32), i, table, tl.load(positions + token), table_rows),
        *(weight, place, mask & ~is_value, eps, SIZE, HAS_WEIGHT),
    )
    a = tl.where(is_value, a, x.to(a.dtype))
    b = tl.where(is_value, b, y.to(b.dtype))
    is_query = (head < NUM_HEADS - NUM_STORED)[:, None]
    tl.store(own, a, mask=mask & is_query)
    tl.store(own + SIZE // 2, b, mask=mask & is_query)
    row = (tl.load(slots + token) * NUM_STORED + head - (NUM_HEADS - NUM_STORED)) * WIDTH
    kind = memory.dtype.element_ty
    if LARGEST > 0:
        x, y = a.to(tl.float32), b.to(tl.float32)
        top = tl.max(tl.maximum(tl.abs(x), tl.abs(y)), 1)
        is_finite = tl.sum(x * 0.0 + y * 0.0, 1) == 0.0
        scale = tl.maximum(tl.div_rn(top, top * 0.0 + LARGEST), _LEAST_SCALE)
        scale = rounded(tl.where(is_finite, scale, float("nan")))
        is_stored = (head < NUM_HEADS) & (head >= NUM_HEADS - NUM_STORED)
        tl.store(scales + (row + WIDTH) // 2 - 1, scale.to(scales.dtype.element_ty), mask=is_stored)
        over = tl.broadcast_to(scale[:, None], x.shape)
        a, b = narrowed(tl.div_rn(x, over), kind, LARGEST), narrowed(tl.div_rn(y, over), kind, LARGEST)
    goal = memory + row[:, None] + i[None, :]
    tl.store(goal, a.to(kind), mask=mask & ~is_query)
    tl.store(goal + SIZE // 2, b.to(kind), mask=mask & ~is_query)


@triton.jit
def rounded(x):
    """Float32 that are bfloat16: the nearest, ties to even, as Triton's interpreter would cut them."""
    bits = x.to(tl.uint32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def narrowed(x, kind: tl.constexpr, LARGEST: tl.constexpr):
    """Float32 rounded to the nearest int8, or to the bits of the nearest float8_e4m3fn; ties to even."""
    x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
    if kind == tl.int8:
        x = (x + 12582912.0) - 12582912.0  # 1.5 * 2**23: what is added has no bits below 1
    else:
        bits = x.to(tl.uint32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)  # exponents of 127 and of 7
        below = ((tl.abs(x) * 512.0 + 12582912.0) - 12582912.0).to(tl.uint32)  # in steps of 2**-9
        x = tl.where(tl.abs(x) < 0.015625, below, normal) | ((bits >> 24) & 128)
    return x.to(kind)
