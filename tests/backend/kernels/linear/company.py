"""A row alone equals the row in company, whatever the company is."""

from __future__ import annotations

import torch

from backend.kernels.linear.w4a16 import DeviceInt4Weight
from backend.kernels.linear.w8 import Device8BitWeight


def check_company(weight: DeviceInt4Weight | Device8BitWeight, features: int) -> None:
    """Up to 64 rows, by bits."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(64, features).to(dtype)
        whole = weight(x)
        for first, count in ((0, 1), (3, 2), (7, 5), (20, 17)):
            beside = x[first : first + count].clone()
            assert torch.equal(weight(beside), whole[first : first + count]), (dtype, count)
        x[1::2] = float("nan")
        assert torch.equal(weight(x)[::2], whole[::2]), dtype
