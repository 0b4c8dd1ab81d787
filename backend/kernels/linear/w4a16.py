"""Weights of 4 bits on a GPU: repacked once, and dequantised in registers at each product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FEW_ROWS = 64
"""More rows are multiplied by torch, with the weight dequantised for this call."""

_UNIT = 64  # columns, as in kernel.py


class DeviceInt4Weight:
    """Codes [K / 64, N, 32] of 2 x 4 bits; scales and zeros [groups, N]: a program's loads are contiguous."""

    __slots__ = ("_codes", "_group", "_order", "_scales", "_zeros", "bias", "shape")

    def __init__(
        self,
        values: Tensor,
        scales: Tensor,
        zeros: Tensor | None,
        group: int,
        bias: Tensor | None,
        order: Tensor | None = None,
    ) -> None:
        """`values` [N, K] int8 that `fits`; `scales`, `zeros` [N, ceil(K / group)]; `order`: GPTQ's."""
        (n, k), self.bias = values.shape, bias
        self.shape = n, k
        self._order, self._group = order, group if group < k else -(-k // _UNIT) * _UNIT
        units = F.pad(values + 8, (0, -k % _UNIT)).view(n, -1, 2, _UNIT // 2).to(torch.uint8)
        self._codes = (units[:, :, 0] | units[:, :, 1] << 4).transpose(0, 1).contiguous()
        narrow = scales.half()
        exact = bool((narrow.float() == scales).all())
        more = -(-units.shape[1] * _UNIT // self._group) - scales.shape[1]  # groups of padding alone
        self._scales = F.pad((narrow if exact else scales).T, (0, 0, 0, more)).contiguous()
        offsets = torch.zeros_like(scales, dtype=torch.int8) if zeros is None else zeros
        self._zeros = F.pad((offsets + 8).T, (0, 0, 0, more)).contiguous()

    @staticmethod
    def fits(values: Tensor, zeros: Tensor | None, group: int) -> bool:
        """Whether the kernel can multiply by these integers, in groups of whole half units."""
        if values.numel() == 0 or (group % (_UNIT // 2) and group < values.shape[1]):
            return False
        low, high = (int(found) for found in values.aminmax())
        return low >= -8 and high <= 7 and (zeros is None or int(zeros.max()) <= 119)

    @property
    def weight(self) -> Tensor:
        """The weight [N, K] in float32, its columns in the order of x."""
        dense = self._dense(torch.float32)
        return dense if self._order is None else torch.empty_like(dense).index_copy_(1, self._order, dense)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, K] → [T, N]."""
        # Imported here: only CUDA builds of torch bring Triton.
        from backend.kernels.linear.kernel import multiply

        if self._order is not None:
            x = x[:, self._order]
        if len(x) > FEW_ROWS:
            return F.linear(x, self._dense(x.dtype), self.bias)
        return multiply(x, self._codes, self._scales, self._zeros, self._group, self.bias)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        from backend.kernels.linear.kernel import dequantize

        return dequantize(self._codes, self._scales, self._zeros, self._group, self.shape[1], dtype)
