"""Products with quantised weights: a layer's weights become one PackedWeight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.kernels import linear
from backend.kernels.linear import PackedWeight, WeightLayout
from backend.kernels.linear.int4 import E2M1, INTEGERS, Int4Weight, e2m1_codes
from backend.kernels.linear.int8 import Int8Weight
from backend.quant.schemes import QuantizedWeight, stack


def pack(
    weights: Sequence[Tensor | QuantizedWeight], bias: Tensor | None, layout: WeightLayout
) -> PackedWeight:
    """Lay out weights [N_i, K], stacked, and their biases for y = x Wᵀ + b.

    Quantised weights without a product of their own are dequantised; in the layout "plain" all are.
    """
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    if len(quantized) == len(weights) and layout != "plain":
        stacked = stack(quantized)
        product = None if stacked is None else _product(stacked, bias)
        if product is not None:
            return product
    # cat copies even one: tensors of the mapped file may be misaligned
    return linear.pack(torch.cat([_rounded(weight, layout) for weight in weights]), bias, layout)


def dense(weight: Tensor | QuantizedWeight) -> Tensor:
    """The weight [N, K] in floats."""
    return weight.dequantize() if isinstance(weight, QuantizedWeight) else weight


def _rounded(weight: Tensor | QuantizedWeight, layout: WeightLayout) -> Tensor:
    """The weight as the layout represents it; next to 4 or 8 bits, the rounding to bfloat16 is nothing."""
    found = dense(weight)
    return found.bfloat16().float() if layout == "bf16" and isinstance(weight, QuantizedWeight) else found


def _product(weight: QuantizedWeight, bias: Tensor | None) -> PackedWeight | None:
    """The product of the weight's own scheme, where there is one."""
    (_, k), (rows, columns) = weight.shape, weight.block
    is_by_row = rows == 1 and columns == k and weight.zeros is None and weight.order is None
    if weight.scheme == "int8" and is_by_row and Int8Weight.fits(k):
        return Int8Weight(weight.values, weight.scales[:, 0], bias)
    if weight.scheme not in ("int4", "mxfp4") or rows != 1:
        return None
    is_e2m1 = weight.scheme == "mxfp4"
    values = e2m1_codes(weight.values) if is_e2m1 else weight.values
    if not Int4Weight.fits(values, weight.zeros, columns):
        return None
    numbers = E2M1 if is_e2m1 else INTEGERS
    return Int4Weight(values, weight.scales, weight.zeros, columns, bias, weight.order, numbers)
