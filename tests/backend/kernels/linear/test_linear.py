"""Every layout multiplies like F.linear."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backend.kernels.linear import WeightLayout, available_layouts, pack


@pytest.mark.parametrize("layout", ["plain", "packed", "half"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 63), (256, 128), (1000, 300)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_linear(layout: WeightLayout, rows: int, columns: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, columns, generator=generator).bfloat16().float()
    bias = torch.randn(rows, generator=generator) if with_bias else None
    multiply = pack(weight, bias, layout)
    for count in (1, 2, 16, 17, 33):
        x = torch.randn(count, columns, generator=generator)
        torch.testing.assert_close(multiply(x), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


def test_overflow_of_half_falls_back() -> None:
    weight = torch.eye(600) * 1e6
    assert pack(weight, None, "half")(torch.ones(3, 600)).isfinite().all()


def test_plain_is_always_there() -> None:
    assert "plain" in available_layouts()
