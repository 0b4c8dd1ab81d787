"""One record for the quantised weights of every format; readers convert to it, products lay it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from backend.config import WeightScheme


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [N, K]: w[n, k] = (values[n, k] - zeros[i, j]) * scales[i, j] for the block (i, j) of (n, k).

    Blocks are `block` = (rows, columns) large; those at the edges may be smaller. Columns of one group are
    neighbours: with `order`, column j of `values` multiplies column order[j] of x (GPTQ's act-order).
    """

    scheme: WeightScheme
    values: Tensor  # [N, K] int8, or float8_e4m3fn for fp8; E2M1 values are stored doubled, -12 to 12
    scales: Tensor  # [ceil(N / rows), ceil(K / columns)] float32
    block: tuple[int, int]
    zeros: Tensor | None = None  # int8, in the shape of `scales`; None: symmetric
    order: Tensor | None = None  # [K] int64
    rounds_inputs: bool = False  # products may round x to the values' dtype; int8 always

    def __post_init__(self) -> None:
        """Check shapes."""
        (n, k), (rows, columns) = self.values.shape, self.block
        assert self.scales.shape == (-(-n // rows), -(-k // columns)) and self.scales.dtype == torch.float32
        assert self.zeros is None or self.zeros.shape == self.scales.shape
        assert self.order is None or self.order.shape == (k,)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        n, k = self.values.shape
        return n, k

    def __getitem__(self, rows: slice) -> QuantizedWeight:
        """Some of the rows, where each has scales of its own."""
        assert self.block[0] == 1
        zeros = None if self.zeros is None else self.zeros[rows]
        return replace(self, values=self.values[rows], scales=self.scales[rows], zeros=zeros)

    def moved(self, move: Callable[[Tensor], Tensor]) -> QuantizedWeight:
        """The same of tensors that `move` gives."""
        parts = self.values, self.scales, self.zeros, self.order
        values, scales, zeros, order = (None if part is None else move(part) for part in parts)
        assert values is not None and scales is not None
        return replace(self, values=values, scales=scales, zeros=zeros, order=order)

    def dequantize(self) -> Tensor:
        """The weight [N, K] in float32, its columns in the order of x."""
        dense = self.values.float()
        (n, k), (height, width) = dense.shape, self.block
        count = k // width
        whole, rest = dense[:, : count * width].view(n, count, width), dense[:, count * width :]
        for by_block, apply in ((self.zeros, Tensor.sub_), (self.scales, Tensor.mul_)):
            if by_block is not None:
                by_row = by_block.repeat_interleave(height, 0)[:n]
                apply(whole, by_row[:, :count, None])
                apply(rest, by_row[:, count:])
        if self.order is None:
            return dense
        return torch.empty_like(dense).index_copy_(1, self.order, dense)


def can_stack(parts: list[QuantizedWeight]) -> bool:
    """Whether weights [N_i, K] have one layout; nothing is copied to tell.

    Parts of GPTQ with act-order differ: each has its own order.
    """
    first, *others = parts
    layouts = {(part.scheme, part.block, part.zeros is None, part.rounds_inputs) for part in parts}
    return (
        len(layouts) == 1
        and all(_is_same_order(first.order, part.order) for part in others)
        and not any(part.shape[0] % part.block[0] for part in parts[:-1])
    )


def stack(parts: list[QuantizedWeight]) -> QuantizedWeight | None:
    """The weights [N_i, K] below one another, or None where their layouts differ."""
    first, *others = parts
    if not can_stack(parts):
        return None
    if not others:
        return first
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return QuantizedWeight(
        first.scheme,
        torch.cat([part.values for part in parts]),
        torch.cat([part.scales for part in parts]),
        first.block,
        torch.cat(zeros) if zeros else None,
        first.order,
        first.rounds_inputs,
    )


def _is_same_order(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)
