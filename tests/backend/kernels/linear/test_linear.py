"""Every layout multiplies like F.linear."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from backend.kernels.linear import WeightLayout, amx, available_layouts, pack, paired


@pytest.mark.parametrize("layout", ["plain", "packed", "half", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 63), (256, 128), (1000, 300)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_linear(
    layout: WeightLayout, rows: int, columns: int, *, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (amx, paired):  # they round x: see their tests
        monkeypatch.setattr(module, "is_available", lambda: False)
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, columns, generator=generator).bfloat16().float()
    bias = torch.randn(rows, generator=generator) if with_bias else None
    multiply = pack(weight, bias, layout)
    for count in (1, 2, 16, 17, 33):
        x = torch.randn(count, columns, generator=generator)
        torch.testing.assert_close(multiply(x), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["half", "bf16"])
def test_overflow_of_half_falls_back(layout: WeightLayout) -> None:
    weight = torch.eye(600) * 1e6
    assert pack(weight, None, layout)(torch.ones(3, 600)).isfinite().all()


def test_bf16_is_accurate_whichever_product_the_processor_has() -> None:
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(200, 300, generator=generator).bfloat16().float()
    x = torch.randn(9, 300, generator=generator)
    exact = x.double() @ weight.double().T
    found = pack(weight, None, "bf16")(x)
    assert found.dtype is torch.float32 and (found - exact).norm() <= 2.5e-3 * exact.norm()


def test_plain_is_always_there() -> None:
    assert "plain" in available_layouts()
