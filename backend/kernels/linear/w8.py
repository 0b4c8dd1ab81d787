"""Weights of 8 bits on a GPU, int8 or float8: read as stored, and widened in registers at each product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 64
"""More rows are rounded to 8 bits where the checkpoint means that, or else multiplied by torch, with the
weight dequantised for this call."""

_UNIT = 128  # columns, as in kernel.py


class Device8BitWeight:
    """Values [N, K] and the float32 scales of their blocks, which a product's sums are multiplied by."""

    __slots__ = ("_rounds_inputs", "bias", "block", "scales", "values")

    def __init__(
        self,
        values: Tensor,
        scales: Tensor,
        block: tuple[int, int],
        bias: Tensor | None,
        *,
        rounds_inputs: bool = False,
    ) -> None:
        """`values` int8 or float8_e4m3fn in a `block` that `fits`: (rows, columns); `scales`: one of each."""
        self.values = values.view(torch.uint8) if values.dtype is torch.float8_e4m3fn else values
        self.scales, self.block, self.bias, self._rounds_inputs = scales, block, bias, rounds_inputs

    @staticmethod
    def fits(values: Tensor, block: tuple[int, int]) -> bool:
        """Whether the kernels can multiply by values with one scale for each (rows, columns)."""
        is_whole = block[1] % _UNIT == 0 or block[1] >= values.shape[1]
        return is_whole and values.dtype in (torch.int8, torch.float8_e4m3fn) and values.numel() > 0

    def move_to(self, values: Tensor, scales: Tensor) -> None:
        """Keep both in this memory, parts of larger tensors."""
        self.values, self.scales = values.copy_(self.values), scales.copy_(self.scales)

    @property
    def weight(self) -> Tensor:
        """The weight [N, K] in float32."""
        return self._dense(torch.float32)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        # Imported here: only CUDA builds of torch bring Triton.
        from backend.kernels.linear.kernel import can_round, multiply_bytes, multiply_rounded

        own = self.values, self.scales, self.block, self.bias
        if len(x) <= FEW_ROWS:
            return multiply_bytes(x, *own)
        if self._rounds_inputs and can_round(self.values.dtype):
            return multiply_rounded(x, *own)
        return F.linear(x, self._dense(x.dtype), self.bias)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        from backend.kernels.linear.kernel import dequantize_bytes

        return dequantize_bytes(self.values, self.scales, self.block, dtype)
