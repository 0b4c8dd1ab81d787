"""Linear: y = x Wᵀ + b, with the weight laid out once for the device.

x [T, K], W [N, K], b [N] → [T, N] in x.dtype. Bound: memory for few rows (reads N K), compute for many.

Layouts: plain (any device and dtype); packed for oneDNN (fp32 on x86, two to three times as fast as plain
for 2 to 32 rows); and, with 16 bits a weight and sums in fp32, half (fp16 by FBGEMM) and bf16, which rounds
x to bfloat16 (amx or paired.py, where the processor multiplies these). On GPUs torch multiplies plain
weights; w4a16.py and w8.py run kernel.py, in Triton, on weights of 4 and 8 bits.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from backend.kernels.linear import amx, packed, paired, small
from backend.kernels.linear.reference import PlainWeight

__all__ = ["PackedWeight", "PlainWeight", "WeightLayout", "available_layouts", "keeps_float32", "pack"]

WeightLayout = Literal["plain", "packed", "half", "bf16"]


class PackedWeight(Protocol):
    """A weight ready to multiply."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, K] → [T, N]."""
        ...


def available_layouts() -> frozenset[WeightLayout]:
    """The layouts that this build of torch supports on this processor."""
    return packed.available_layouts()


def keeps_float32(layout: WeightLayout) -> WeightLayout:
    """The layout that stands for `layout` where weights are float32, or no precision may be lost."""
    return "packed" if layout in ("half", "bf16") else layout


def pack(weight: Tensor, bias: Tensor | None, layout: WeightLayout) -> PackedWeight:
    """Put `weight` [N, K] into `layout`, or the next best one that is available.

    "half" and "bf16" are for weights stored in 16 bits, and fall back where one represents them and the
    other does not.
    """
    assert weight.dim() == 2 and (bias is None or bias.shape == (weight.shape[0],))
    if layout == "bf16" and paired.fits(weight):
        if amx.is_available():
            return amx.TileWeight(weight, bias)
        if paired.is_available():
            return paired.LoopWeight(weight, bias)
    library: small.Packer
    if layout in ("half", "bf16") and packed.fits_half(weight):
        library = packed.HalfWeight
    elif layout != "plain" and "packed" in available_layouts() and weight.dtype == torch.float32:
        library = packed.OnednnWeight
    else:
        return PlainWeight(weight, bias)
    is_small = weight.numel() <= small.SMALL_ELEMENTS
    return small.SmallWeight(weight, bias, library) if is_small else library(weight, bias)
