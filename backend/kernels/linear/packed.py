"""Weights laid out for x86: oneDNN's blocked fp32, and FBGEMM's fp16 storage with fp32 arithmetic."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from backend.kernels.linear import WeightLayout

_ROWS_HINT = 16
"""oneDNN chooses its blocks for this many rows; measured to be good from 1 to 256, unlike a hint of 1."""

_LONGEST_SUM = 1024
"""OneDNN splits longer sums of a row that is alone, in another order than beside others."""

_HALF_MAX = 65504.0
"""Fp16's largest number. Fp16 holds bf16 weights up to it exactly, those below 2^-14 to within 2^-25."""


class OnednnWeight:
    """Fp32 weight in oneDNN's blocked layout; the result is plain fp32."""

    __slots__ = ("_linear", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
        self.bias = bias
        self._linear = _direct(torch.ops.mkldnn._linear_pointwise.default)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        if x.shape[0] == 1 and x.shape[1] > _LONGEST_SUM:
            return self(x.expand(2, -1))[:1]
        return self._linear(x, self.weight, self.bias, "none", [], "")


_BLOCK_ROWS = 120
"""The rows of a block of FBGEMM's GEMM; the remainder is split among microkernels of fewer rows."""


class HalfWeight:
    """Fp16 storage, fp32 activations, products and sums: half the bytes of fp32 at nearly its precision.

    Where FBGEMM adds products in another order for some numbers of rows, others are put beside them.
    """

    __slots__ = ("_linear", "_packed", "_padding")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)
        self._linear = _direct(torch.ops.quantized.linear_dynamic_fp16.default)
        self._padding = _padding()

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        if self._padding and (more := self._padding.get((len(x) - 1) % _BLOCK_ROWS + 1)):
            padded = torch.cat((x, x[:1].expand(more, -1)))
            return self._linear(padded, self._packed)[: len(x)]
        return self._linear(x, self._packed)


@functools.cache
def _padding() -> dict[int, int]:
    """For numbers of rows whose bits are not those of a block, how many more rows they need: by trying."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, 96, generator=generator) for rows in (8, _BLOCK_ROWS))
    packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    multiply = torch.ops.quantized.linear_dynamic_fp16
    whole = multiply(x, packed)
    found: dict[int, int] = {}
    for count in reversed(range(1, _BLOCK_ROWS)):
        if not torch.equal(multiply(x[:count], packed), whole[:count]):
            found[count] = 1 + found.get(count + 1, 0)
    return found


def _direct(operator: Callable[..., Any]) -> Callable[..., Tensor]:
    """The operator without its Python wrapper, which checks every argument: 3 us a call."""
    bare: Callable[..., Tensor] = getattr(operator, "_op", operator)
    return bare


def fits_half(weight: Tensor) -> bool:
    """Whether FBGEMM is available and no element overflows fp16. For weights that are stored in 16 bits."""
    if "half" not in available_layouts():
        return False
    low, high = weight.aminmax()
    return -_HALF_MAX <= low.item() and high.item() <= _HALF_MAX


@functools.cache
def available_layouts() -> frozenset[WeightLayout]:
    """Determined by trying: builds of torch for other processors lack one or both."""
    found: set[WeightLayout] = {"plain"}
    weight, x = torch.eye(16), torch.ones(2, 16)
    trials: tuple[tuple[WeightLayout, type[OnednnWeight | HalfWeight]], ...] = (
        ("packed", OnednnWeight),
        ("half", HalfWeight),
    )
    for layout, kind in trials:
        try:
            if torch.equal(kind(weight, None)(x), x):
                found.add(layout)
        except (AttributeError, NotImplementedError, RuntimeError):
            continue  # this build cannot: the next best layout serves
    return frozenset(found)
