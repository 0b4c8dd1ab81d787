"""Norm and rotation of heads in Triton: a program for some heads of one token."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launch import blocks


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor, weight: Tensor | None, eps: float) -> None:
    """Rotate the heads of x [T, H, D] in place, D even; with a `weight` [H, D], normalise them before."""
    num_tokens, num_heads, size = x.shape
    if not x.numel():
        return
    options = blocks("rotary", "heads", x.dtype).options()
    _rotate[num_tokens, triton.cdiv(num_heads, options["HEADS"])](
        *(x, cos, signed_sin, weight, eps, x.stride(0), num_heads),
        SIZE=size,
        BLOCK=triton.next_power_of_2(size // 2),
        HAS_WEIGHT=weight is not None,
        **options,
    )


@triton.jit
def _rotate(
    x,
    cos,
    signed_sin,
    weight,
    eps,
    stride,
    num_heads,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HEADS: tl.constexpr,
):
    """HEADS heads of one token. Grid (T, H / HEADS).

    x [T, H, SIZE], tokens `stride` elements apart; cos, signed_sin [T, SIZE], of which the halves of an angle
    are the same but for the sine's sign; weight [H, SIZE].
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    i = tl.arange(0, BLOCK)
    is_pair = i < SIZE // 2
    mask = (head < num_heads)[:, None] & is_pair[None, :]
    place = head[:, None] * SIZE + i[None, :]
    first, second = x + token * stride + place, x + token * stride + place + SIZE // 2
    a = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(second, mask=mask, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        factor = 1 / tl.sqrt_rn((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / SIZE + eps)
        a *= factor[:, None] * tl.load(weight + place, mask=mask, other=0.0).to(tl.float32)
        b *= factor[:, None] * tl.load(weight + place + SIZE // 2, mask=mask, other=0.0).to(tl.float32)
    angle = token * SIZE + i
    c = tl.load(cos + angle, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    s = tl.load(signed_sin + angle + SIZE // 2, mask=is_pair, other=0.0).to(tl.float32)[None, :]
    tl.store(first, (a * c - b * s).to(x.dtype.element_ty), mask=mask)
    tl.store(second, (b * c + a * s).to(x.dtype.element_ty), mask=mask)
