"""Rounds weights to 8 or 4 bits: each to the nearest, or so that errors cancel on real inputs (GPTQ).

GPTQ (Frantar et al., 2023) rounds column by column and spreads the error of each over the columns that are
left, as far as the inputs say that they can make up for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import QuantizationConfig, RoundingScheme, WeightFormat
from backend.quant.schemes import QuantizedWeight

_GROUPS = (128, 64, 32)
"""Columns that share a scale in int4: the first that divides a row; if none does, the row has one scale."""


def _config(scheme: RoundingScheme, bits: int, *groups: int) -> QuantizationConfig:
    formats = tuple(WeightFormat(scheme, bits, (1, columns), is_packed=False) for columns in groups)
    return QuantizationConfig("compressed-tensors", formats)


FORMATS: dict[RoundingScheme, QuantizationConfig] = {
    "int8": _config("int8", 8, 0),
    "fp8": _config("fp8", 8, 0),
    "int4": _config("int4", 4, *_GROUPS, 0),
}
"""How `stored` lays out weights, for the readers of checkpoints."""

_LARGEST: dict[RoundingScheme, float] = {"int8": 127.0, "fp8": 448.0, "int4": 7.0}
_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Scales are tried at these shares of the one that clips nothing."""
_STEP = 128  # columns whose errors are spread at once over those behind them
_DAMPING = 0.01  # of the mean square of an input: keeps the inverse finite


def round_weight(weight: Tensor, scheme: RoundingScheme, products: Tensor | None = None) -> QuantizedWeight:
    """The weight [N, K], finite, in `scheme`; without `products` to nearest.

    `products` [K, K] is xᵀx over real inputs.
    """
    left, k = weight.float().clone(), weight.shape[1]
    group = k
    if scheme == "int4":
        group = next((columns for columns in _GROUPS if k % columns == 0), k)
    factor = None if products is None else _inverse_factor(products)
    values, scales = torch.empty_like(left), torch.empty(0)
    by_group = []
    for begin in range(0, k, min(group, _STEP)):
        end = min(begin + min(group, _STEP), k)
        if begin % group == 0:
            scales = _scales(left[:, begin : begin + group], scheme)
            by_group.append(scales)
        if factor is None:
            values[:, begin:end] = _nearest(left[:, begin:end], scales, scheme)
            continue
        errors = torch.empty(len(left), end - begin)
        for i in range(begin, end):
            column = left[:, i : i + 1]
            values[:, i : i + 1] = _nearest(column, scales, scheme)
            error = (column - values[:, i : i + 1] * scales) / factor[i, i]
            left[:, i + 1 : end] -= error * factor[i, i + 1 : end]
            errors[:, i - begin] = error[:, 0]
        left[:, end:] -= errors @ factor[begin:end, end:]
    dtype = torch.float8_e4m3fn if scheme == "fp8" else torch.int8
    return QuantizedWeight(scheme, values.to(dtype), torch.cat(by_group, 1), (1, group))


def stored(name: str, weight: QuantizedWeight) -> dict[str, Tensor]:
    """The tensors of a rounded weight, by the names of compressed-tensors; `name` ends in ".weight"."""
    return {name: weight.values, f"{name}_scale": weight.scales}


def _scales(weight: Tensor, scheme: RoundingScheme) -> Tensor:
    """Scales [N, 1] of the least squared error in each row; 1 for rows of zeros."""
    widest = weight.abs().amax(1, keepdim=True) / _LARGEST[scheme]
    widest = torch.where(widest > 0, widest, 1.0)
    if scheme == "fp8":  # with four bits of E4M3 times four of these, bfloat16 holds the weight exactly
        mantissa, exponent = torch.frexp(widest)
        widest = torch.ldexp((mantissa * 16).ceil() / 16, exponent)
    best, least = widest, torch.full_like(widest, torch.inf)
    for shrink in _SHRINKS if scheme == "int4" else (1.0,):
        scales = widest * shrink
        rounded = _nearest(weight, scales, scheme) * scales
        error = (weight - rounded).square().sum(1, keepdim=True)
        best, least = torch.where(error < least, scales, best), torch.minimum(error, least)
    return best


def _nearest(weight: Tensor, scales: Tensor, scheme: RoundingScheme) -> Tensor:
    """The nearest values of the scheme, in float32."""
    found, most = weight / scales, _LARGEST[scheme]
    if scheme == "fp8":
        return found.clamp(-most, most).to(torch.float8_e4m3fn).float()
    return found.round().clamp(-most - (scheme == "int4"), most)


def _inverse_factor(products: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of `products`, damped: how columns make up for one another."""
    damped, diagonal = products.double(), products.diagonal().double()
    mean = diagonal.mean().clamp(min=1e-20)  # without any input all columns are alike
    damped = damped + torch.diag(mean * _DAMPING + (diagonal == 0) * mean)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
