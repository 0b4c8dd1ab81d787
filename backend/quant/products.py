"""Products with quantised weights: a layer's weights become one PackedWeight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from backend.kernels import linear
from backend.kernels.device import has_triton
from backend.kernels.linear import PackedWeight, WeightLayout
from backend.kernels.linear.int4 import E2M1, INTEGERS, Int4Weight, e2m1_codes
from backend.kernels.linear.int8 import Int8Weight
from backend.kernels.linear.w4a16 import DeviceInt4Weight
from backend.kernels.linear.w8 import Device8BitWeight
from backend.quant.schemes import QuantizedWeight, can_stack, stack

_BYTES = ("fp8", "int8", "w8a16")


def pack(
    weights: Sequence[Tensor | QuantizedWeight], bias: Tensor | None, layout: WeightLayout
) -> PackedWeight:
    """Lay out weights [N_i, K], stacked, and their biases for y = x Wᵀ + b.

    Quantised weights without a product of their own are dequantised; in the layout "plain" all are on a CPU.
    """
    quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
    if len(quantized) == len(weights):
        stacked = stack(quantized)
        find = _device_product if layout == "plain" else _product
        product = None if stacked is None else find(stacked, bias)
        if product is not None:
            return product
    # cat copies even one: tensors of the mapped file may be misaligned
    return linear.pack(torch.cat([_rounded(weight, layout) for weight in weights]), bias, layout)


def place(
    weights: Sequence[Tensor | QuantizedWeight],
    layout: WeightLayout,
    device: torch.device,
    dtype: torch.dtype,
    move: Callable[[Tensor], Tensor],
) -> list[Tensor | QuantizedWeight]:
    """The weights for `pack`, on `device`: quantised ones stay so where there are products with them.

    `move` gives a tensor on `device`.
    """
    keeps = layout != "plain"
    if not keeps and has_triton(device):
        quantized = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
        is_whole = len(quantized) == len(weights) and can_stack(quantized)
        keeps = is_whole and all(_fits_device(weight) for weight in quantized)
    return [
        weight.moved(move) if keeps and isinstance(weight, QuantizedWeight) else move(dense(weight)).to(dtype)
        for weight in weights
    ]


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


def _fits_device(weight: QuantizedWeight) -> bool:
    """Whether a kernel for GPUs multiplies by it."""
    values, zeros, block = weight.values, weight.zeros, weight.block
    if weight.scheme == "int4":
        return block[0] == 1 and DeviceInt4Weight.fits(values, zeros, block[1])
    has_offsets = zeros is not None or weight.order is not None
    return weight.scheme in _BYTES and not has_offsets and Device8BitWeight.fits(values, block)


def _device_product(weight: QuantizedWeight, bias: Tensor | None) -> PackedWeight | None:
    """The same on a GPU."""
    if not has_triton(weight.values.device) or not _fits_device(weight):
        return None
    values, scales, block = weight.values, weight.scales, weight.block
    if weight.scheme in _BYTES:
        rounds_inputs = weight.rounds_inputs or weight.scheme == "int8"
        return Device8BitWeight(values, scales, block, bias, rounds_inputs=rounds_inputs)
    return DeviceInt4Weight(values, scales, weight.zeros, block[1], bias, weight.order)
