"""Norm, rotation and store in Triton: a program for some heads of one token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks
from backend.kernels.rotary import Angles
from backend.kernels.rotary.kernel import turned


def kv_write(
    heads: Tensor, angles: Angles, slots: Tensor, memory: Tensor, weight: Tensor | None, eps: float
) -> None:
    """Arguments as the op's; all are contiguous, D is even and `memory` as wide as D."""
    num_tokens, num_heads, size = heads.shape
    if not num_tokens:
        return
    options = blocks("kv_write", "heads", heads.dtype).options()
    _kv_write[num_tokens, triton.cdiv(num_heads, options["HEADS"])](
        *(heads, *angles, slots, memory, weight, eps, angles.table.shape[1]),
        NUM_HEADS=num_heads,
        NUM_STORED=memory.shape[1],
        SIZE=size,
        BLOCK=triton.next_power_of_2(size // 2),
        HAS_WEIGHT=weight is not None,
        **options,
    )


@triton.jit
def _kv_write(
    heads,
    table,
    positions,
    slots,
    memory,
    weight,
    eps,
    table_rows,
    NUM_HEADS: tl.constexpr,
    NUM_STORED: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HEADS: tl.constexpr,
):
    """HEADS heads of one token. Grid (T, NUM_HEADS / HEADS).

    heads [T, NUM_HEADS, SIZE]; table [2, table_rows, SIZE]; slots [T]; memory [S, NUM_STORED, SIZE].
    The last NUM_STORED heads are stored; the last half of them, the values, is neither normed nor rotated.
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
    goal = memory + tl.load(slots + token) * (NUM_STORED * SIZE) + place - (NUM_HEADS - NUM_STORED) * SIZE
    kind = memory.dtype.element_ty
    tl.store(goal, a.to(kind), mask=mask & ~is_query)
    tl.store(goal + SIZE // 2, b.to(kind), mask=mask & ~is_query)
